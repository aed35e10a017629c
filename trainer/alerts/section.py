"""The section `alerts` of a recipe. Imports nothing heavy."""

from __future__ import annotations

from rocknroll.sandbox.alerts.config import FleetAlerts, FleetRuleChanges
from rocknroll.sandbox.alerts.rule import RuleChange


class TrainingRuleChanges(FleetRuleChanges):
    """Rules of a run by name: those of its sandboxes, and its own (`trainer/alerts/rules.py`)."""

    stall: RuleChange = RuleChange()
    staleness_pinned: RuleChange = RuleChange()
    entropy_collapse: RuleChange = RuleChange()
    cheating: RuleChange = RuleChange()


class AlertsSection(FleetAlerts):
    """Whom alerts are told to, and which rules are changed. A recipe that leaves it alone is written without it."""

    rules: TrainingRuleChanges = TrainingRuleChanges()
