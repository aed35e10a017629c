"""A fleet in trouble tells of it everywhere: service, metrics, events, log, webhook; and once more when it is over."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from hooks import listening
from services import serving

from rocknroll.sandbox.alerts.rule import Alert
from rocknroll.sandbox.client import AsyncClient
from rocknroll.sandbox.errors import SpecInvalid
from rocknroll.sandbox.fleetfile import parse_fleet
from rocknroll.sandbox.site import Site
from rocknroll.sandbox.state_folder import StateFolder
from rocknroll.sandbox.store import Store

pytestmark = pytest.mark.asyncio
Eventually = Callable[[Callable[[], bool]], Awaitable[None]]


def one(site: Site, rule: str) -> dict[str, object] | None:
    return next((alert for alert in site.alerts() if alert["rule"] == rule), None)


async def test_a_quarantine_is_told_of_everywhere_and_over_when_the_sandbox_is_back(
    folder: Path, eventually: Eventually, caplog: pytest.LogCaptureFixture
) -> None:
    flag = folder / "flag"
    flag.mkdir()
    pool = {"command": ["test", "-e", str(flag / "there")], "readable": [str(flag)], "restart": {"limit": 1}}
    with listening() as hook:
        rules = {"quarantine": {"clear_s": 0.0, "severity": "critical"}, "disk": {"enabled": False}}
        alerts = {"every_s": 0.02, "webhook": {"url": hook.url}, "rules": rules}
        async with serving(folder, {"box": pool}, alerts=alerts) as site, AsyncClient(site.state.socket) as client:
            await eventually(lambda: one(site, "quarantine") is not None)
            (alert,) = await client.alerts()
            assert (alert["subject"], alert["severity"], alert["resolved"]) == ("pool box", "critical", None)
            assert "box-0" in alert["text"] and "`rock restart ID`" in alert["text"]
            figures = await client.metrics()
            assert 'rock_alerts{rule="quarantine",severity="critical"} 1.0' in figures
            (flag / "there").touch()
            await client.restart("box-0")
            await eventually(lambda: bool((found := one(site, "quarantine")) and found["resolved"]))
            figures = await client.metrics()
            assert "rock_alerts{" not in figures and 'rock_alerts_raised_total{rule="quarantine"} 1.0' in figures
            kinds = [event.kind for event in await client.events(limit=10_000) if event.sandbox == "pool box"]
            assert kinds == ["alert_raised", "alert_resolved"]
            await eventually(lambda: len(hook.posted) == 2)
        assert [(told["event"], told["from"]) for told in hook.posted] == [("raised", "rock"), ("resolved", "rock")]
    assert "alert quarantine (critical)" in caplog.text and "quarantine on pool box is over" in caplog.text


async def test_the_next_manager_goes_on_with_open_alerts(folder: Path, eventually: Eventually) -> None:
    state = StateFolder(folder / "state")
    state.prepare()
    store = Store(state.store)
    earlier = Alert("disk", "the state folder", "critical", 5.0, "It was full.")
    store.put_alert(earlier)
    store.close()
    async with serving(folder, alerts={"every_s": 0.02, "rules": {"disk": {"clear_s": 0.0}}}) as site:
        await eventually(lambda: bool((found := one(site, "disk")) and found["resolved"]))
        assert [alert["since"] for alert in site.alerts()] == [5.0]
    store = Store(state.store)
    assert [(alert.since, alert.resolved is None) for alert in store.alerts(10)] == [(5.0, False)]
    store.close()


async def test_a_look_that_fails_is_said_once_and_does_not_end_the_watch(
    folder: Path, eventually: Eventually, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    looks = []

    async def broken(self: object, now: float) -> list[object]:
        looks.append(now)
        raise OSError("no such disk")

    monkeypatch.setattr("rocknroll.sandbox.alerts.readings.FleetReader.read", broken)
    async with serving(folder, alerts={"every_s": 0.01}):
        await eventually(lambda: len(looks) > 3)
    assert [record.message for record in caplog.records if "looked at" in record.message] == [
        "the fleet cannot be looked at for alerts; this is said once, and tried again"
    ]


async def test_a_webhook_without_its_url_ends_a_start_before_a_sandbox_is_there(folder: Path) -> None:
    with pytest.raises(SpecInvalid, match="ROCK_NO_SUCH_HOOK"):
        async with serving(folder, alerts={"webhook": {"url_variable": "ROCK_NO_SUCH_HOOK"}}):
            pass
    store = Store(folder / "state" / "store.sqlite")
    assert store.events() == []
    store.close()


@pytest.mark.parametrize(
    ("alerts", "says"),
    [
        ({"rules": {"disc": {}}}, r"Did you mean `alerts\.rules\.disk`"),
        ({"rules": {"disk": {"severity": "critcal"}}}, "Did you mean `critical`"),
        ({"webhook": {}}, "either a `url` or a `url_variable`"),
        ({"webhook": {"url": "ftp://x"}}, "alerts.webhook.url"),
        ({"command": {"argv": []}}, "alerts.command.argv"),
        ({"every_s": 0}, "alerts.every_s"),
    ],
)
async def test_what_a_fleet_file_says_of_alerts_is_checked(alerts: object, says: str) -> None:
    with pytest.raises(SpecInvalid, match=says):
        parse_fleet({"pools": {"box": {}}, "alerts": alerts}, "fleet.yaml", Path())
