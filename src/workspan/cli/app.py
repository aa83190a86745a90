"""The commands and their options."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import App, CycloptsError, Parameter, UnusedCliTokensError

import workspan as ws
from workspan.cli import exits
from workspan.cli.history_app import build as history
from workspan.cli.terminal import complain, say

_PLACE = "A tracking folder, a folder of some, or a runs.jsonl; '#-2' behind it selects a run."


def run(words: list[str]) -> int:
    """Carry out the command line *words* and return the exit code."""
    if words == ["--version"]:  # the parser would load what draws its help
        say(_version())
        return exits.DONE
    application = build()
    try:
        command, bound, *_ = application.parse_args(words, exit_on_error=False, print_error=False)
    except CycloptsError as error:
        name = words[0] if words and words[0] in application else ""
        text = " ".join(str(error).split())
        if isinstance(error, UnusedCliTokensError) and error.unused_tokens:
            text = f"{name or 'workspan'} takes no more words, and there {_are(error.unused_tokens)}."
        help_of = f"workspan {name} --help" if name else "workspan --help"
        complain(f"workspan: {text} (`{help_of}` lists the options)")
        return exits.REFUSED
    if command.__module__.startswith(__package__):  # ours, and not help or version
        return int(command(*bound.args, **bound.kwargs))
    with suppress(SystemExit):  # so rich leaves when the reader of its help has gone
        command(*bound.args, **bound.kwargs)
    return exits.DONE


def _version() -> str:
    return f"workspan {ws.__version__}"


def _default(value: Any) -> str | None:
    """Return a default as help shows it; that nothing is asked for needs no words."""
    return None if value is None or value is False or value == () else str(value)


def _are(words: Sequence[str]) -> str:
    return f"{'is' if len(words) == 1 else 'are'} {', '.join(map(repr, words))}"


def build() -> App:
    """Make the command line parser."""
    app = App(
        name="workspan",
        help=(
            "Array and batch processing that knows what it costs.\n\n"
            "Exit codes: 0 done, 1 run not complete, 2 refused before the run, 3 store locked, corrupt or full, "
            "130 and 143 ended by a signal. Any command takes --traceback to show where an error came from."
        ),
        version=_version,
        default_parameter=Parameter(negative=(), show_default=_default),
    )
    app.command(demo)
    app.command(run_script, name="run")
    app.command(forecast)
    app.command(report)
    app.command(compare)
    app.command(trace)
    app.command(repair)
    app.command(watch)
    app.command(history())
    app.command(worker)
    app.command(doctor)
    app.command(settings, name="config")
    app.command(completion)
    return app


def _whole(kind: type[int], tokens: Sequence[Any]) -> int:
    """Convert to int what is one: the parser's own conversion would round 1.5."""
    try:
        return int(tokens[0].value)
    except ValueError:
        raise ValueError(f'"{tokens[0].value}" is not a whole number.') from None


def demo(
    *,
    out: Annotated[Path, Parameter(help="Folder for everything that the demo writes.")] = Path("workspan-demo"),
    workers: Annotated[int, Parameter(converter=_whole, help="Worker processes of a task.")] = 2,
    block: Annotated[int, Parameter(converter=_whole, help="Edge of a block, in voxels.")] = 64,
    engine: Annotated[
        str, Parameter(help="Who runs the blocks: processes, serial, dask, ray, or a cluster (dask://host:8786).")
    ] = "processes",
    act: Annotated[
        list[Literal["brain", "flights", "forecast"]] | None,
        Parameter(help="Only this act; may be given more than once. Default: all three.", negative=()),
    ] = None,
    fresh: Annotated[bool, Parameter(help="First delete what an earlier demo wrote to the folder.")] = False,
    quiet: Annotated[bool, Parameter(help="Print errors only.")] = False,
) -> int:
    """Run real data in three acts, forecast a second run, and report what everything cost.

    Act 1 sorts a brain into tissue classes, block by block. Act 2 finds out which late flights made up time, as a
    dataset. Act 3 forecasts a second run of both and compares. At the end there is a report as a page. Run again in
    the same folder, the demo does only what is missing. It needs the extra 'demo': pip install 'workspan[demo]'.
    """
    from workspan.cli.demo.main import run as run_demo
    from workspan.cli.demo.stage import ACTS, Options

    acts = tuple(name for name in ACTS if not act or name in act)
    return run_demo(Options(out=out, workers=workers, block=block, engine=engine, fresh=fresh, quiet=quiet, acts=acts))


def forecast(
    path: Annotated[Path, Parameter(help="A tracking folder, a folder of some, or a runs.jsonl.")],
    /,
    *,
    workers: Annotated[
        int | None, Parameter(converter=_whole, help="Workers of each task; default: as in the last run.")
    ] = None,
    fresh: Annotated[bool, Parameter(help="All blocks, also those that are done.")] = False,
    json: Annotated[bool, Parameter(help="Print one JSON object.")] = False,
) -> int:
    """Say how long the rest of a tracked run will take, or a repeat of it if it is complete.

    It is known from the blocks of earlier runs: how long they took, how much they varied, and how they wait for each
    other. The script is not needed.
    """
    from workspan.cli.forecast import run as run_forecast

    return run_forecast(path, workers=workers, fresh=fresh, as_json=json)


def report(
    path: Annotated[Path, Parameter(help=_PLACE)] = Path(),
    /,
    *,
    html: Annotated[
        Path | None,
        Parameter(help="Write a page about the run, which needs nothing but itself.", allow_leading_hyphen=True),
    ] = None,
    json: Annotated[
        Path | None, Parameter(help="Write the report; - is standard output.", allow_leading_hyphen=True)
    ] = None,
    csv: Annotated[
        Path | None, Parameter(help="Write the blocks, a row each; - is standard output.", allow_leading_hyphen=True)
    ] = None,
    parquet: Annotated[Path | None, Parameter(help="Write the blocks, a row each.", allow_leading_hyphen=True)] = None,
) -> int:
    """Print how far the last run came and what it cost, and write it as a page or as data.

    A run that goes on, or was killed, is told from its tracking store.
    """
    from workspan.cli.report import Outputs
    from workspan.cli.report import run as run_report

    return run_report(str(path), Outputs(html=html, json=json, csv=csv, parquet=parquet))


def compare(
    a: Annotated[Path, Parameter(help=_PLACE)],
    b: Annotated[Path | None, Parameter(help="The newer one; without it the last run at A and the one before.")] = None,
    /,
    *,
    fail_over: Annotated[str | None, Parameter(help="End with exit code 1 if anything grew by more: 10%.")] = None,
    fail_on: Annotated[
        tuple[str, ...], Parameter(help="Metrics that can fail: wall, cpu, memory, 'io read', steps, ...")
    ] = (),
    smallest: Annotated[str, Parameter(help="Smallest change that matters.")] = "2%",
    also: Annotated[
        tuple[Path, ...], Parameter(help="More runs of the older program, which tell how much runs differ.")
    ] = (),
    with_first: Annotated[bool, Parameter(help="Take the first block of each worker, too.")] = False,
    all: Annotated[bool, Parameter(help="Show every step, and how it was compared.")] = False,
    json: Annotated[bool, Parameter(help="Print JSON.")] = False,
) -> int:
    """Say what changed from one run to another, with the spread of the blocks taken into account.

    Exit codes here: 0 no regression, 1 something grew by more than --fail-over, 2 something could not be compared.
    """
    from workspan.cli.compare import run as run_compare

    return run_compare(
        str(a),
        None if b is None else str(b),
        fail_over=fail_over,
        smallest=smallest,
        also=[str(path) for path in also],
        fail_on=fail_on,
        with_first=with_first,
        everything=all,
        as_json=json,
    )


def trace(
    path: Annotated[Path, Parameter(help=_PLACE)],
    /,
    *,
    out: Annotated[
        Path, Parameter(name=("--out", "-o"), help="File to write; a name that ends with .gz is compressed.")
    ] = Path("trace.json"),
    lanes: Annotated[
        Literal["workers", "steps"], Parameter(help="A lane for each worker, or for each step of each worker.")
    ] = "workers",
    limit: Annotated[int, Parameter(converter=_whole, help="Most blocks; the first ones are kept.")] = 1_000_000,
    gzip: Annotated[bool, Parameter(help="Compress, whatever the name.")] = False,
    otlp: Annotated[str | None, Parameter(help="Send spans to this OTLP endpoint instead (extra 'otel').")] = None,
) -> int:
    """Write a run as a trace that opens in Perfetto (ui.perfetto.dev) and in chrome://tracing.

    Each worker is a lane, blocks are slices, steps are slices within them, memory and I/O are counters.
    """
    from workspan.cli.trace import run as run_trace

    return run_trace(str(path), out=out, lanes=lanes, limit=limit, compress=gzip, otlp=otlp)


def repair(
    path: Annotated[Path, Parameter(help="A tracking folder.")],
    /,
    *,
    yes: Annotated[bool, Parameter(help="Repair without asking; needed where there is no terminal.")] = False,
) -> int:
    """Say what is broken in a tracking store, and mend it.

    What cannot be trusted is reset to "not done", so that the next run does those blocks again; no block ever becomes
    done by a repair. The changed files are first copied to a folder beside the store.
    """
    from workspan.cli.repair import run as run_repair

    return run_repair(path, yes=yes)


def watch(
    place: Annotated[Path | None, Parameter(help="A tracking folder: only the program that works into it.")] = None,
    /,
    *,
    name: Annotated[
        str | None,
        Parameter(name=("--name", "-n"), help="Only programs, or log handlers, of this name; * matches any."),
    ] = None,
    pid: Annotated[
        int | None, Parameter(name=("--pid", "-p"), converter=_whole, help="Only the process of this number.")
    ] = None,
    plain: Annotated[bool, Parameter(help="Print lines, as where there is no terminal.")] = False,
    once: Annotated[bool, Parameter(help="Print what goes on now, and end.")] = False,
) -> int:
    """Show what your programs that run in other terminals are doing, until Ctrl-C.

    Each step is shown with how long it has taken and, where that is known from earlier runs, how long it will take.
    The programs need no change for it and are not slowed down.
    """
    from workspan.cli.watch import run as run_watch

    return run_watch(None if place is None else str(place), name=name, pid=pid, plain=plain, once=once)


def worker(
    *,
    context: Annotated[Path, Parameter(help="Context file of a task of a run.")],
    dial: Annotated[str | None, Parameter(help="HOST:PORT to dial instead of the run's: this end of a tunnel.")] = None,
) -> int:
    """Join a run that goes on, from this machine or another one, and work for one of its tasks until it is done.

    The run must listen for workers (host= or a Server), and its log folder must be on a file system that this machine
    sees too. Only the user who started the run can join it.
    """
    from workspan.cli.worker import run as run_worker

    return run_worker(context, dial)


def run_script(
    script: Annotated[Path, Parameter(help="A Python script, and after a colon what to run of it: script.py:task.")],
    /,
    *arguments: Annotated[str, Parameter(help="Arguments of the script (sys.argv); options of its own after --.")],
    workers: Annotated[int | None, Parameter(converter=_whole, help="Most workers of each task.")] = None,
    engine: Annotated[
        str | None, Parameter(help="Who runs the blocks: processes, serial, dask, ray, slurm, dask://host:8786.")
    ] = None,
    tracking: Annotated[
        Path | None, Parameter(help="Folder that remembers what was done, with a folder of each task.")
    ] = None,
    set_: Annotated[tuple[str, ...], Parameter(name="--set", show_default=False, help="A setting, name=value.")] = (),
    forecast_only: Annotated[bool, Parameter(help="Say how long it would take, and run nothing.")] = False,
    no_progress: Annotated[bool, Parameter(help="Show no progress.")] = False,
    quiet: Annotated[bool, Parameter(help="Print errors only.")] = False,
) -> int:
    """Run the task, the pipeline or the list of tasks that a script declares.

    What stands under `if __name__ == "__main__":` is not run. The name may be that of a variable, of a function that
    returns a task or runs it or writes a dataset, or the id of a task; it is not needed where there is only one.
    Options win over what the script says; run.workers and run.engine of the settings do, too.
    """
    from workspan.cli.run import Options
    from workspan.cli.run import run as run_it

    return run_it(
        Options(
            script=str(script),
            arguments=arguments,
            workers=workers,
            engine=engine,
            tracking=tracking,
            settings=set_,
            forecast_only=forecast_only,
            progress=not no_progress,
            quiet=quiet,
        )
    )


def doctor(
    *,
    path: Annotated[Path | None, Parameter(help="Folder whose file system is looked at, else the working one.")] = None,
    json: Annotated[bool, Parameter(help="Print one JSON object.")] = False,
    limit: Annotated[float, Parameter(help="Most seconds that it may take; usually it is one.")] = 5.0,
) -> int:
    """Say what this machine can measure and do, and what to do about what it cannot.

    Everything is tried out: clocks, counters, a worker process, locks and maps of the file system, sockets. The exit
    code is 1 only if something is broken without which nothing runs.
    """
    from workspan.cli.doctor import run as run_doctor

    return run_doctor(path, json=json, limit=limit)


def settings(
    *,
    changed: Annotated[bool, Parameter(help="Only those that are not at their default.")] = False,
    json: Annotated[bool, Parameter(help="Print one JSON object.")] = False,
) -> int:
    """Print every setting, its value, and where that came from.

    Settings come from workspan.toml or pyproject.toml ([tool.workspan]) in the working directory, and from WORKSPAN_...
    in the environment, which wins.
    """
    from workspan.cli.settings import run as run_settings

    return run_settings(only_changed=changed, json=json)


def completion(
    shell: Annotated[
        Literal["bash", "zsh", "fish"] | None, Parameter(help="Shell; by default the one this runs in.")
    ] = None,
    /,
    *,
    install: Annotated[bool, Parameter(help="Write it where the shell looks for it, instead of printing it.")] = False,
) -> int:
    """Print what makes a shell complete commands and options of workspan at the Tab key.

    For the running shell alone: source <(workspan completion bash).
    """
    from workspan.cli.completion import run as run_completion

    return run_completion(build(), shell, install=install)
