"""Renders reports and live states for people. No rule, no counting: what is shown is what it is given."""
