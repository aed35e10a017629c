"""The section `alerts` of a fleet file, and what a recipe's builds on: rules to change, and whom to tell."""

from __future__ import annotations

from typing import Self

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from rocknroll.sandbox.alerts.rule import RuleChange
from rocknroll.sandbox.spec import Model


class Webhook(Model):
    """Every alert that is raised or resolved is posted there as JSON."""

    url: str | None = Field(default=None, pattern=r"^https?://\S+$")
    url_variable: str | None = Field(default=None, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    """Environment variable that holds the URL instead: many webhooks' URLs are secrets."""
    timeout_s: PositiveFloat = 10.0
    """For each try."""
    tries: PositiveInt = 4

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if (self.url is None) == (self.url_variable is None):
            raise ValueError("give the webhook either a `url` or a `url_variable`")
        return self


class AlertCommand(Model):
    """Every alert that is raised or resolved is given to this program, as JSON on its standard input."""

    argv: tuple[str, ...] = Field(min_length=1)
    """The program and its arguments; no shell reads them."""
    timeout_s: PositiveFloat = 30.0
    """After which it is killed."""


class FleetRuleChanges(Model):
    """Rules of a fleet by name (`sandbox/alerts/fleet.py`), and what to change about them."""

    crash_loop: RuleChange = RuleChange()
    quarantine: RuleChange = RuleChange()
    stalled_queue: RuleChange = RuleChange()
    leak: RuleChange = RuleChange()
    memory_growth: RuleChange = RuleChange()
    disk: RuleChange = RuleChange()


class Told(Model):
    """Whom alerts are told to, besides the log and the record."""

    webhook: Webhook | None = None
    command: AlertCommand | None = None


class FleetAlerts(Told):
    """`alerts:` of a fleet file."""

    every_s: PositiveFloat = 5.0
    """Between two looks."""
    rules: FleetRuleChanges = FleetRuleChanges()
