"""Fleet files: what they say, and what is said about those that are wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocknroll.sandbox.errors import SpecInvalid
from rocknroll.sandbox.fleetfile import FleetFile, default_fleet, load_fleet_file
from rocknroll.sandbox.spec import SandboxSpec


def load(folder: Path, text: str) -> FleetFile:
    path = folder / "fleet.yaml"
    path.write_text(text, encoding="utf-8")
    return load_fleet_file(path)


def test_a_pool_is_a_spec_and_how_many_of_it(tmp_path: Path) -> None:
    fleet = load(tmp_path, "pools: {small: {size: 3, ready: 1, reuse: reset, resources: {processes: 9}}}")
    pool = fleet.pools["small"]
    assert (pool.runtime, pool.size, pool.ready) == ("process", 3, 1)
    assert pool.spec == SandboxSpec.model_validate(
        {"name": "small", "reuse": "reset", "resources": {"processes": 9}},
    )


def test_relative_paths_start_at_the_files_folder(tmp_path: Path) -> None:
    text = "state: here\nlisten: {unix: s.sock}\npools: {a: {template: files, readable: [data, /usr/share]}}"
    fleet = load(tmp_path, text)
    assert (fleet.state, fleet.listen.unix) == (tmp_path / "here", tmp_path / "s.sock")
    assert fleet.pools["a"].template == tmp_path / "files"
    assert fleet.pools["a"].readable == (tmp_path / "data", Path("/usr/share"))


def test_without_a_file_there_are_a_few_bare_process_sandboxes() -> None:
    (pool,) = default_fleet().pools.values()
    assert (pool.name, pool.runtime, pool.size) == ("default", "process", 4)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("pools: {a: {siez: 3}}", "unknown key `pools.a.siez`. Did you mean `pools.a.size`?"),
        ("pools: {a: {env: {entry_pont: 'a:B'}}}", "Did you mean `pools.a.env.entry_point`?"),
        ("pols: {a: {}}", "`pools` must name at least one pool"),
        ("lissen: {}\npools: {a: {}}", "unknown key `lissen`. Did you mean `listen`?"),
        ("pools: {a: {size: '3'}}", '`pools.a.size` must be a whole number, but is "3" (text)'),
        ("pools: {a: {size: 0}}", "`pools.a.size`"),
        ("pools: {a: {size: 1, ready: 2}}", "more than the 1 sandboxes"),
        ("pools: {a: {runtime: docker}}", "needs an `image`"),
        ("pools: {a: {runtime: moon}}", "`pools.a.runtime` must be 'process' or 'docker'"),
        ("pools: {a: {image: x}}", "the process runtime has no `image`"),
        ("pools: {a: {network: bridge}}", "Docker's"),
        ("pools: {a: {user: nobody}}", "`pools.a.user`"),
        ("pools: {a: {name: b}}", "named by its key"),
        ("pools: {-a b: {}}", "`pools.-a b.name` may hold letters"),
        ("pools: {a: 3}", "`pools.a` must be a section"),
        ("pools: {a: {health: {failures: 9}}}", "can never hold failures=9"),
        ("listen: {tcp: '7000'}\npools: {a: {}}", "`listen.tcp`"),
        ("listen: {tcp: 'localhost:70000'}\npools: {a: {}}", "ports go from 1 to 65535"),
        ("listen: {tokens: t}\npools: {a: {}}", "`tcp`, which is not set"),
        ("cluster: {adress: auto}\npools: {a: {}}", "`cluster.adress`"),
        ("- a", "is a mapping of keys to values, this is a list"),
        ("pools: {a: {}, a: {}}", "`a` is given twice"),
        ("pools: {a: [", "not valid YAML: line 1"),
    ],
)
def test_what_is_wrong_is_said_with_file_and_key(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(SpecInvalid) as caught:
        load(tmp_path, text)
    assert says in str(caught.value)
    assert str(caught.value).startswith(str(tmp_path / "fleet.yaml"))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SpecInvalid, match=r"nowhere\.yaml: the fleet file cannot be read"):
        load_fleet_file(tmp_path / "nowhere.yaml")
