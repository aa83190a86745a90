"""What a worker is told about its run: a mapping that survives an environment variable."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

import workspan as ws
from helpers.client_kit import line_task, serving
from workspan import Context
from workspan.errors import ConfigurationError

text = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from("%:=253AaD"), max_size=12)


class TestMapping:
    def test_values_are_text_in_the_order_given(self, logs):
        """B93: a mapping from text to text; the log folder is added at the end."""
        context = Context(task_id="t", port=7, worker_id=-1)
        assert list(context) == list(context.keys()) == ["task_id", "port", "worker_id", "logdir"]
        assert list(context.values()) == ["t", "7", "-1", str(logs)]
        assert list(context.items())[1] == ("port", "7")
        assert len(context) == 4
        assert "port" in context
        assert "host" not in context
        assert context["port"] == "7"
        assert context.get("host") is None
        assert context.get("host", "x") == "x"
        with pytest.raises(KeyError):
            context["host"]

    def test_the_log_folder_is_empty_if_there_is_none(self, logs):
        """B93: an empty text if nothing is logged to files; a value that was given stays."""
        ws.logging.set_log_basedir(None)
        assert Context()["logdir"] == ""
        assert Context(logdir="x")["logdir"] == "x"

    def test_a_copy_is_its_own(self):
        """B93: what is set in a copy is not in the original."""
        context = Context(task_id="t", logdir="")
        copy = context.copy()
        assert copy == context
        copy["task_id"] = 5
        assert (context["task_id"], copy["task_id"]) == ("t", "5")
        assert copy != context
        assert context != {"task_id": "t", "logdir": ""}

    def test_the_name_of_the_variable_is_daisys(self):
        """B93, B96."""
        assert Context.ENV_VARIABLE == "DAISY_CONTEXT"


class TestEncoding:
    @given(st.dictionaries(text.filter(bool), text, max_size=6))
    def test_round_trip(self, values):
        """B94: whatever names and values hold, they come back, in their order."""
        context = Context(logdir="")
        for name, value in values.items():
            context[name] = value
        back = Context.from_env_string(context.to_env())
        assert list(back.items()) == list(context.items())

    def test_three_characters_are_escaped(self):
        """B94: and no others."""
        context = Context.from_env_string("")
        context["a%:=b"] = "%25:=/ \n"
        assert context.to_env() == "a%25%3A%3Db=%2525%3A%3D/ \n"

    def test_other_escapes_pass(self):
        """B94: what is no escape stays as it is, lower case included."""
        values = "a=%41%3a%3d%2:b=%:c=%253A:d=x%3A"
        assert list(Context.from_env_string(values).values()) == ["%41%3a%3d%2", "%", "%3A", "x:"]

    def test_a_value_may_hold_an_equals_sign(self):
        """The first one separates name and value, as in daisy."""
        assert Context.from_env_string("a=b=c")["a"] == "b=c"

    @pytest.mark.parametrize("wrong", ["a", "a=1:b", "a=1:", ":", "a=1::b=2"])
    def test_a_pair_without_an_equals_sign(self, wrong):
        """B94: a ValueError that shows the text."""
        with pytest.raises(ValueError, match="is no name=value pair") as caught:
            Context.from_env_string(wrong)
        assert repr(wrong) in str(caught.value)

    def test_reading_adds_nothing(self, logs):
        """B94: what was not written is not there."""
        assert list(Context.from_env_string("a=1")) == ["a"]
        assert len(Context.from_env_string("")) == 0


class TestEnvironment:
    def test_workspans_name_comes_first(self, monkeypatch):
        """D2, B97."""
        monkeypatch.setenv("DAISY_CONTEXT", "a=daisy")
        assert Context.from_env()["a"] == "daisy"
        monkeypatch.setenv("WORKSPAN_CONTEXT", "a=workspan")
        assert Context.from_env()["a"] == "workspan"

    def test_no_variable(self, monkeypatch):
        """B94: a KeyError."""
        for name in ("DAISY_CONTEXT", "WORKSPAN_CONTEXT"):
            monkeypatch.delenv(name, raising=False)
        with pytest.raises(KeyError, match="WORKSPAN_CONTEXT"):
            Context.from_env()

    def test_a_worker_finds_both_names_and_the_driver_none(self, tmp_path, logs):
        """B95, D2: children have the context in their environment, also those that a worker function starts."""

        def work():
            (tmp_path / "own").write_text("\n".join(os.environ[n] for n in ("WORKSPAN_CONTEXT", "DAISY_CONTEXT")))
            os.system(f'echo "$WORKSPAN_CONTEXT" > {tmp_path}/other; echo "$DAISY_CONTEXT" >> {tmp_path}/other')
            ws.Client().run(lambda block: None)

        before = dict(os.environ)
        task = line_task(2, work, tracking_path=tmp_path / "store", resource_tracking=True)
        with serving(task) as run:
            run_id = run.context()["run_id"]
            assert run.wait()
        assert dict(os.environ) == before
        own = (tmp_path / "own").read_text().splitlines()
        assert (tmp_path / "other").read_text().splitlines() == own
        assert own[0] == own[1]
        context = Context.from_env_string(own[0])
        expected = {"hostname": "127.0.0.1", "task_id": "t", "worker_id": "0", "resource_tracking": "1"}
        expected |= {"logdir": str(logs), "run_id": run_id}
        assert {name: context[name] for name in expected} == expected
        assert list(context) == [*list(expected)[:1], "port", *list(expected)[1:], "secret_file"]


class TestFile:
    def test_round_trip(self, tmp_path):
        """A context file holds one context and a line end."""
        (tmp_path / "c").write_text("a=1:b=x%3Ay\n")
        assert dict(Context.from_file(tmp_path / "c").items()) == {"a": "1", "b": "x:y"}

    @pytest.mark.parametrize("content", [None, b"\xff\xfe", b"no context"])
    def test_what_is_no_context(self, tmp_path, content):
        """The error names the file or its content."""
        if content is not None:
            (tmp_path / "c").write_bytes(content)
        with pytest.raises(ConfigurationError, match=r"cannot be read|no context"):
            Context.from_file(tmp_path / "c")
