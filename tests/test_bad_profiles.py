"""Profiles by name, by file and from a folder; what is wrong is said so that one can mend it."""

import os
import time
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

import hardware_profiles as hp
from hardware_profiles import catalog
from hardware_profiles.errors import ProfileError
from hardware_profiles.schema import Accelerator, Cluster

ACCELERATORS = sorted(path.stem for path in (catalog.SHIPPED / "accelerators").glob("*.yaml"))
CLUSTERS = sorted(path.stem for path in (catalog.SHIPPED / "clusters").glob("*.yaml"))

CHIP = """
name: mine
title: My chip
vendor: me
architecture: new
peak_flops: {bf16: 100 TFLOP/s}
hbm_bytes: 80 GB
hbm_bandwidth: 2 TB/s
sources: {peak_flops: measured, hbm_bytes: read, hbm_bandwidth: read}
"""
CLUSTER = """
name: ours
title: Our cluster
accelerator: h100-sxm
tiers:
  - {name: node, degree: 8, bandwidth: 450 GB/s, source: here}
  - {name: net, degree: 4, bandwidth: 400 GB/s, source: here}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's own folder, named by the environment."""
    monkeypatch.setenv(catalog.ENVIRONMENT, str(tmp_path))
    return tmp_path


def refusal(text: str, *parts: str, where: str = "file.yaml") -> str:
    """The message with which ``text`` is refused; it names the file and says all of ``parts``."""
    with pytest.raises(ProfileError) as caught:
        hp.read(text, where)
    message = str(caught.value)
    for part in (where, *parts):
        assert part in message
    return message


def complaint(text: str) -> str:
    """What is wrong with ``text``; nothing if it is a profile."""
    try:
        hp.read(text)
    except ProfileError as error:
        return str(error)
    return ""


# -------------------------------------------------------------------------------------------- names


def test_unknown_names_bring_the_nearest() -> None:
    with pytest.raises(
        ProfileError, match="no accelerator is called 'h100-sx'; the nearest are h100"
    ):
        hp.accelerator("h100-sx")
    with pytest.raises(
        ProfileError, match=r"no cluster is called 'h100'; the nearest .*dgx-h100-superpod"
    ):
        hp.cluster("h100")
    with pytest.raises(ProfileError, match=r"no calibration is called 'h10'; the nearest .*h100"):
        hp.calibration("h10")
    with pytest.raises(ProfileError, match=r"no cluster is called 'zzzz'; allowed: .*, aws-p4d"):
        hp.cluster("zzzz")


@pytest.mark.parametrize(
    "name", ["", "..", "a\0b", "x" * 5000, "~nobody-here/x.yaml", "a\0b/c.yaml"]
)
@pytest.mark.parametrize("load", [hp.accelerator, hp.cluster, hp.calibration])
def test_strange_names_end_in_a_message(name: str, load: object) -> None:
    with pytest.raises(ProfileError) as caught:
        load(name)  # type: ignore[operator]
    assert len(str(caught.value)) < 2000


# ------------------------------------------------------------------------------------------ content


@pytest.mark.parametrize(
    ("old", "new", "parts"),
    [
        ("80 GB", "-80 GB", ["hbm_bytes", "-80 GB must be above zero", "allowed: 100 MB to 1 PB"]),
        ("80 GB", "0", ["hbm_bytes", "0 B must be above zero"]),
        ("80 GB", ".nan", ["hbm_bytes", "nan is not a finite number"]),
        ("2 TB/s", ".inf", ["hbm_bandwidth", "inf is not a finite number", "allowed: 1 MB/s"]),
        ("80 GB", "80", ["hbm_bytes", "did you mean 80 GB?"]),
        ("2 TB/s", "80 GB", ["hbm_bandwidth", "'80 GB'", "is not a form of B/s"]),
        ("2 TB/s", "7 apples", ["hbm_bandwidth", "'7 apples'", "'apples'"]),
        ("2 TB/s", "true", ["hbm_bandwidth", "True is not a number"]),
        ("100 TFLOP/s", "[1, 2]", ["peak_flops.bf16", "[1, 2] is not a number"]),
        ("bf16:", "bf17:", ["peak_flops", "unknown dtype 'bf17'", "bf16"]),
        ("{bf16: 100 TFLOP/s}", "{}", ["peak_flops", "at least one dtype", "fp32"]),
        ("hbm_bytes: 80 GB\n", "", ["hbm_bytes: missing, and there is no default"]),
        ("title:", "tilte: x\ntitle:", ["tilte: no such field; the nearest", "title"]),
        ("hbm_bytes: read, ", "", ["no source is given for hbm_bytes"]),
        ("measured", "''", ["sources.peak_flops", "'' is refused", "at least 1 character"]),
        ("{peak_flops", "{speed: x, peak_flops", ["sources: no field is called 'speed'"]),
        ("vendor: me", "sms: 2.5", ["sms", "2.5 is refused", "integer"]),
        ("vendor: me", "vendor: me\nvendor: you", ["'vendor' stands twice", "line 5"]),
        ("vendor: me", "vendor: &me x\nnotes: *me", ["line 5", "aliases (*me) are not allowed"]),
        ("title", "kind: bus\ntitle", ["kind: 'bus' is not one", "accelerator, cluster"]),
    ],
)
def test_wrong_accelerators(old: str, new: str, parts: list[str]) -> None:
    assert old in CHIP
    refusal(CHIP.replace(old, new, 1), *parts)


@pytest.mark.parametrize(
    ("old", "new", "parts"),
    [
        (
            "degree: 8",
            "degree: 0",
            ["tiers.0.degree", "0 is refused", "greater than or equal to 1"],
        ),
        ("degree: 8", "degree: -1", ["tiers.0.degree", "-1 is refused", "greater than"]),
        ("degree: 8", "degree: 2.5", ["tiers.0.degree", "2.5 is refused", "integer"]),
        ("degree: 8", "degree: '8'", ["tiers.0.degree", "'8' is refused", "integer"]),
        ("degree: 8", "degree: 99999999999", ["tiers.0.degree", "less than or equal"]),
        ("400 GB/s", "400", ["tiers.1.bandwidth", "did you mean 400 GB/s or 400 Gb/s?"]),
        (
            "400 GB/s",
            "40 TB/s",
            ["tiers.1.bandwidth", "5 TB/s for each of its 8", "450 GB/s", "'reason'"],
        ),
        ("name: net", "name: node", ["tiers: names must differ, got node, node"]),
        ("400 GB/s, source: here", "400 GB/s", ["tiers.1.source: missing"]),
        ("bandwidth: 400", "bandwith: 400", ["tiers.1.bandwith: no such field", "bandwidth"]),
        (
            "accelerator: h100-sxm",
            "accelerator: h100-sx",
            ["accelerator: no accelerator is called"],
        ),
        ("accelerator: h100-sxm\n", "", ["accelerator: missing"]),
        ("title", "price: 2 USD/h\ntitle", ["price_source: a price needs one"]),
        ("title", "price: 2 apples\ntitle", ["price: '2 apples'", "USD/h"]),
        ("title", "kind: accelerator\ntitle", ["tiers: no such field"]),
        ("title", "bandwith: 1\ntitle", ["bandwith: no such field; allowed: name, title"]),
        ("title", "nots: x\ntitle", ["nots: no such field; the nearest is notes"]),
        ("degree: 8", "degree: 8, hbm: 1", ["tiers.0.hbm: no such field; allowed: name, degree"]),
    ],
)
def test_wrong_clusters(old: str, new: str, parts: list[str]) -> None:
    assert old in CLUSTER
    refusal(CLUSTER.replace(old, new, 1), *parts)


def test_suggestions_are_of_the_place() -> None:
    chip = yaml.safe_load(CHIP) | {"links": [{"name": "x", "degree": 2}], "shared_memory": 1}
    machine = yaml.safe_load(CLUSTER) | {"accelerator": chip}
    said = refusal(yaml.safe_dump(machine))
    assert "accelerator.links.0.degree: no such field; allowed: name, count, bandwidth" in said
    assert "accelerator.shared_memory: no such field; the nearest is shared_memory_per_sm" in said
    assert "price" not in said
    said = refusal(CLUSTER.replace("source: here", "source: here, bandwith: 1"))
    assert len(said.splitlines()) == 2  # and no word that the list of tiers is empty


def test_a_rise_names_both_tiers_and_the_likelier_slip() -> None:
    """The node's 8 cards of 400 Gb/s typed as one: the tier outside is right at 12.8 TB/s."""
    pod = CLUSTER.replace("degree: 4", "degree: 32")
    pod += "  - {name: pod, degree: 4, bandwidth: 12.8 TB/s, source: here}\n"
    assert complaint(pod) == ""
    said = refusal(pod.replace("400 GB/s", "400 Gb/s"))
    for part in (
        "tiers.1.bandwidth: 50 GB/s for one child of 'net' (6.25 GB/s for each of its 8 GPUs)",
        "12.8 TB/s for one child of 'pod' (50 GB/s for each of its 256 GPUs)",
        "one network card of 400 Gb/s",
        "did you mean 400 GB/s?",
        "the field 'reason' of 'pod'",
    ):
        assert part in said
    said = refusal(pod.replace("12.8", "25.6"))
    assert "tiers.2.bandwidth: 25.6 TB/s for one child of 'pod' (100 GB/s for each" in said
    assert "400 GB/s for one child of 'net' (50 GB/s for each of its 8 GPUs)" in said
    said = refusal(pod.replace("450 GB/s", "25 GB/s"))
    assert "tiers.0.bandwidth: 25 GB/s for one GPU of 'node'" in said
    assert "one link's? One h100-sxm has NVLink 4: did you mean 450 GB/s?" in said


H100 = hp.to_yaml(hp.accelerator("h100-sxm"))
BF16, FP8 = "bf16: 989.4 TFLOP/s", "fp8: 1.9789 PFLOP/s"


@pytest.mark.parametrize(
    ("old", "new", "parts"),
    [
        (BF16, "bf16: 1979 TFLOP/s", ["bf16: 1.979 PFLOP/s is as much as fp8", "989.5 TFLOP/s?"]),
        (FP8, "fp8: 3958 TFLOP/s", ["peak_flops.fp8", "2 times", "132 SMs", "1.979 PFLOP/s?"]),
        (
            "tf32: 494.7",
            "tf32: 989",
            ["peak_flops.tf32", "1.83 GHz", "did you mean 494.5 TFLOP/s?"],
        ),
    ],
)
def test_a_peak_with_sparsity_is_questioned(old: str, new: str, parts: list[str]) -> None:
    """NVIDIA prints 1,979 TFLOP/s of bf16 for an H100, with sparsity; dense it has 989.4."""
    assert old in H100
    sparse = H100.replace(old, new)
    refusal(sparse, "the rate with sparsity", *parts)
    assert complaint(f"{sparse}\nreason: measured") == ""
    machine = yaml.safe_load(CLUSTER) | {"accelerator": yaml.safe_load(sparse) | {}}
    machine["accelerator"].pop("kind")
    refusal(yaml.safe_dump(machine), "accelerator.peak_flops.")


@given(st.sampled_from(ACCELERATORS))
def test_twice_every_peak_is_questioned_where_the_chip_is_known(name: str) -> None:
    chip = hp.accelerator(name)
    rates = {dtype: 2 * rate for dtype, rate in chip.peak_flops.items()}
    known = chip.sms and chip.boost_clock and name != "rtx-4090"  # which does half an L40S
    text = hp.to_yaml(chip.model_copy(update={"peak_flops": rates}))
    assert ("sparsity" in complaint(text)) == bool(known) or "scaling-book" in name


def test_every_problem_gets_a_line() -> None:
    message = refusal(CHIP.replace("80 GB", "0").replace("2 TB/s", "fast"))
    assert len(message.splitlines()) == 2


def test_nics_in_bits_are_understood_and_a_reason_lets_bandwidth_grow() -> None:
    ours = hp.read(CLUSTER.replace("400 GB/s", "400 Gb/s"))
    assert isinstance(ours, Cluster)
    assert ours.tiers[1].bandwidth == 50e9
    grown = hp.read(CLUSTER.replace("400 GB/s, ", "40 TB/s, reason: optical, "))
    assert isinstance(grown, Cluster)
    assert grown.tiers[1].bandwidth == 40e12


def test_a_cluster_may_hold_its_accelerator_and_be_json() -> None:
    chip = hp.read(CHIP)
    assert isinstance(chip, Accelerator)
    ours = Cluster.model_validate(hp.cluster("local").model_dump() | {"accelerator": chip})
    assert hp.read(ours.model_dump_json(exclude_defaults=True)) == ours
    assert hp.read("{\n\t" + ours.model_dump_json(exclude_defaults=True)[1:]) == ours


LAUGHS = "a: &a [x, x]\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} [*{chr(97 + i)}, *{chr(97 + i)}]\n" for i in range(24)
)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("!!python/object/apply:os.system ['touch pwned']", "not plain YAML"),
        ("name: !!python/object/apply:os.system ['touch pwned']", "not plain YAML"),
        ("- a\n- b", "a mapping of fields to values, not a list"),
        ("just words", "not a str"),
        ("", "is empty"),
        ("# only a comment", "is empty"),
        ("name: [", "not plain YAML"),
        ("name: 'x", "not plain YAML"),
        ("a: b: c", "not plain YAML"),
        ("name: a\n---\nname: b", "not plain YAML"),
        ("\x00\x01\x02", "not plain YAML"),
        ("[" * 100_000, "nested deeper than 20 levels"),
        ("{a: " * 50_000, "nested deeper than 20 levels"),
        (LAUGHS, "aliases (*a) are not allowed"),
        ("x" * 2_000_000, "is no profile"),
        ("sms: " + "9" * 10_000, "a value cannot be read"),
        ("name: 2024-99-99", "a value cannot be read"),
        ("? [a, b]\n: c", ""),
        ("<<: {a: b}", ""),
    ],
)
def test_hostile_texts_are_refused_quickly(text: str, said: str) -> None:
    start = time.process_time()
    refusal(text, said)
    assert time.process_time() - start < 5
    assert not Path("pwned").exists()


@given(st.text(max_size=300))
def test_any_text_is_a_profile_or_a_profile_error(text: str) -> None:
    with pytest.raises(ProfileError):
        hp.read(text)


@given(st.recursive(st.none() | st.booleans() | st.floats() | st.text(max_size=5), st.lists))
def test_any_value_in_any_field_is_taken_or_refused_by_name(value: object) -> None:
    for field in ("hbm_bytes", "peak_flops", "links", "sources", "sms", "notes", "name"):
        text = yaml.safe_dump(yaml.safe_load(CHIP) | {field: value})
        assert field in complaint(text) or not complaint(text)


# -------------------------------------------------------------------------------------------- files


def test_a_file_by_its_path(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(CHIP)
    (tmp_path / "ours.yaml").write_text(CLUSTER.replace("h100-sxm", "mine.yaml"))
    assert hp.accelerator(str(tmp_path / "mine.yaml")).name == "mine"
    assert hp.cluster(str(tmp_path / "ours.yaml")).accelerator.name == "mine"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"\xff\xfe\x00\x80binary", "is not text in UTF-8"),
        (b"", "is empty"),
        (b"x" * 2_000_000, "2000000 bytes is no profile; allowed: up to 1000000 bytes"),
        (CLUSTER.encode(), "kind: holds a cluster, not an accelerator"),
        (CHIP.replace("80 GB", "0").encode(), "hbm_bytes: 0 B must be above zero"),
    ],
)
def test_a_bad_file_is_named(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_bytes(content)
    with pytest.raises(ProfileError) as caught:
        hp.accelerator(str(path))
    assert str(path) in str(caught.value)
    assert said in str(caught.value)


def test_an_accelerator_beside_the_cluster_by_its_stem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.json").write_text(CHIP)
    ours = tmp_path / "ours.yaml"
    ours.write_text(CLUSTER.replace("h100-sxm", "mine"))
    assert hp.cluster(str(ours)).flops("bf16") == 100e12
    (tmp_path / "mine.json").write_text(CHIP.replace("100 TF", "1200 TF"))
    assert hp.cluster(str(ours)).flops("bf16") == 1200e12
    monkeypatch.chdir(tmp_path)
    assert hp.cluster("ours.yaml").accelerator.name == "mine"
    # A text that comes from nowhere opens no file, and a cluster is no accelerator of its own.
    refusal(ours.read_text(), "no accelerator is called 'mine'")
    ours.write_text(CLUSTER.replace("h100-sxm", "ours"))
    with pytest.raises(ProfileError, match=r"accelerator: no accelerator is called 'ours'"):
        hp.cluster("ours.yaml")
    ours.write_text(CLUSTER.replace("h100-sxm", "x" * 5000))
    with pytest.raises(ProfileError, match=r"ours.yaml: accelerator: no accelerator is called"):
        hp.cluster("ours.yaml")


def test_a_file_is_called_as_its_profile(folder: Path) -> None:
    fit = (catalog.SHIPPED / "calibrations" / "h100.yaml").read_text()
    for stem, text, load in (
        ("hers", CHIP, hp.accelerator),
        ("theirs", CLUSTER, hp.cluster),
        ("fit", fit, hp.calibration),
    ):
        path = folder / f"{stem}.yaml"
        path.write_text(text)
        with pytest.raises(ProfileError) as caught:
            load(stem)
        name = yaml.safe_load(text)["name"]
        said = f"{path}: name: {name!r} is not the file's, {stem!r}; write 'name: {stem}', or"
        assert str(caught.value) == f"{said} rename the file to {name}.yaml"


@pytest.mark.parametrize("name", [None, 3, 2.5, ["h100-sxm"], b"h100-sxm"])
@pytest.mark.parametrize("load", [hp.accelerator, hp.cluster, hp.calibration])
def test_what_is_no_name_is_refused(name: object, load: object) -> None:
    with pytest.raises(ProfileError, match=r"names no .*; give its name as text, such as '\w"):
        load(name)  # type: ignore[operator]


def test_a_path_object_is_a_name(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(CHIP)
    assert hp.accelerator(tmp_path / "mine.yaml").name == "mine"


def test_no_file_and_a_folder_are_named(tmp_path: Path) -> None:
    (tmp_path / "folder.yaml").mkdir()
    with pytest.raises(ProfileError, match=r"folder.yaml: cannot be read: Is a directory"):
        hp.cluster(str(tmp_path / "folder.yaml"))
    with pytest.raises(ProfileError, match=r"none.yaml: cannot be read: No such file"):
        hp.cluster(str(tmp_path / "none.yaml"))


def test_a_cluster_that_names_itself_ends(folder: Path) -> None:
    path = folder / "loop.yaml"
    for name in ("loop.yaml", str(path), "loop"):
        path.write_text(CLUSTER.replace("h100-sxm", name))
        with pytest.raises(ProfileError) as caught:
            hp.cluster("loop")
        assert f"{path}: accelerator: " in str(caught.value)


def test_an_unknown_accelerator_names_the_clusters_file(folder: Path) -> None:
    (folder / "ours.yaml").write_text(CLUSTER.replace("h100-sxm", "h100-sxmm"))
    with pytest.raises(ProfileError, match=r"ours.yaml: accelerator: .*'h100-sxmm'; the nearest"):
        hp.cluster("ours")


def test_a_users_folder_with_a_good_and_a_broken_file(folder: Path) -> None:
    (folder / "mine.yaml").write_text(CHIP)
    (folder / "ours.json").write_text('{"kind": "cluster", "tiers": 1}')
    (folder / "broken.yaml").write_text("name: [")
    (folder / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    (folder / "folder.yaml").mkdir()
    (folder / "notes.txt").write_text("not a profile")
    (folder / "fit.yaml").write_text((catalog.SHIPPED / "calibrations" / "h100.yaml").read_text())
    assert hp.accelerator("mine").flops("bf16") == 100e12
    assert {"mine", "broken", "binary", *ACCELERATORS} == set(hp.accelerators())
    assert {"ours", "local", *CLUSTERS} == set(hp.clusters())
    assert "fit" in hp.calibrations()
    assert hp.cluster("dgx-h100-superpod").gpus == 1024
    with pytest.raises(ProfileError, match=r"broken.yaml: not plain YAML"):
        hp.accelerator("broken")
    with pytest.raises(ProfileError, match=r"ours.json: name: missing"):
        hp.cluster("ours")


def test_a_users_file_wins_and_changes_are_seen(folder: Path) -> None:
    pod = hp.cluster("dgx-h100-superpod")
    path = folder / "h100-sxm.yaml"
    for rate in (200, 300):
        path.write_text(
            CHIP.replace("name: mine", "name: h100-sxm").replace("100 TF", f"{rate} TF")
        )
        os.utime(path, ns=(rate, rate))
        assert hp.accelerator("h100-sxm").flops("bf16") == rate * 1e12
        assert hp.cluster("dgx-h100-superpod").flops("bf16") == rate * 1e12
    path.unlink()
    assert hp.cluster("dgx-h100-superpod") == pod


def test_several_folders_and_a_missing_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}.yaml").write_text(CHIP)
    both = os.pathsep.join((str(tmp_path / "a"), "", str(tmp_path / "b")))
    monkeypatch.setenv(catalog.ENVIRONMENT, both)
    assert {"a", "b"} <= set(hp.accelerators())
    monkeypatch.setenv(catalog.ENVIRONMENT, str(tmp_path / "gone"))
    for call in (hp.accelerators, hp.clusters, hp.calibrations):
        with pytest.raises(ProfileError, match=r"ROOFLINE_PROFILES: '.*gone' is not a folder"):
            call()
