"""Versions side by side, order by constraints, and switches."""

import json

import pytest
from tests.unit.passes.small import STAGE, chain, run, swap, types

from bringup import passes
from bringup.errors import PassError, SettingError


def register(name, stage=STAGE, **settings):
    cls = swap("a", name.lower())
    passes.register_fusion_pass(name=name, stage=stage, **settings)(cls)
    return cls


def order(names=None, **keywords):
    return [item.pass_name for item in passes.select_passes(names, **keywords)]


def test_newest_version_runs_and_an_option_names_another():
    for version, new in (("1", "old"), ("1.10", "newest"), ("1.9", "newer")):
        passes.register_fusion_pass(name="P", stage=STAGE, version=version)(swap("a", new))
    assert [item.version for item in passes.get_registered_passes()] == ["1.10", "1.9", "1"]
    for keywords, expected in (
        ({"names": None}, "newest"),
        ({"names": ["P@1.9"]}, "newer"),
        ({"names": None, "versions": {"P": "1.0"}}, "old"),
    ):
        graph = chain("a")
        passes.run_passes(graph, passes.select_passes(**keywords))
        assert types(graph) == [expected]
    with pytest.raises(ValueError, match=r"pass 'P' has no version '3'; there are \['1.10',"):
        passes.select_passes(["P@3"])


def test_taken_name_and_version_is_a_value_error_that_leaves_the_first():
    """A duplicate is refused."""
    first = register("P", version="2")
    other = type("Other", (passes.FusionBasePass,), {})
    with pytest.raises(ValueError, match=r"a pass named 'P@2' is registered already, by .*Swap"):
        passes.register_fusion_pass(name="P", stage=STAGE, version="2.0")(other)
    (only,) = passes.get_registered_passes()
    assert only.pass_class is first


def test_same_class_again_is_a_no_op():
    cls = register("P")
    passes.register_fusion_pass(name="P", stage=STAGE)(cls)
    assert len(passes.get_registered_passes()) == 1


@pytest.mark.parametrize("version", ["", "1.x", "v1", "1..2", "-1"])
def test_version_is_made_of_numbers(version):
    with pytest.raises(ValueError, match="numbers and dots"):
        register("P", version=version)


def test_descriptor_key_finds_the_newest_or_the_named_version():
    register("P", version="1")
    register("P", version="2")
    (key,) = {item.descriptor_key for item in passes.get_registered_passes()}
    assert key.endswith(":Swap:P")
    find = passes.get_registered_pass_by_descriptor_key
    assert find(key).version == "2"
    assert find(key, "1.0").version == "1"
    with pytest.raises(KeyError, match="no pass is registered as 'nobody:X:P'"):
        find("nobody:X:P")
    with pytest.raises(KeyError, match="3"):
        find(key, "3")


def test_dicts_have_the_fields_of_the_descriptors():
    @passes.register_decompose_pass(name="D", stage=STAGE, op_types=["demo::a"], version="3")
    class Decompose(passes.DecomposePass):
        pass

    (found,) = passes.get_registered_pass_dicts()
    assert json.loads(json.dumps(found)) == found
    assert (found["pass_name"], found["kind"], found["version"]) == ("D", "decompose", "3")
    assert found["op_types"] == ["demo::a"]
    assert Decompose.op_types == ("demo::a",)
    assert found["stage"] == "AfterInferShape"


def test_unregistering_takes_all_versions_or_one():
    register("P", version="1")
    register("P", version="2")
    passes.unregister_pass("P", "2")
    assert [item.version for item in passes.get_registered_passes()] == ["1"]
    with pytest.raises(KeyError, match="no pass named 'P@2' is registered"):
        passes.unregister_pass("P", "2")
    passes.unregister_pass("P")
    assert passes.get_registered_passes() == ()


def test_requires_and_after_come_before_priority_and_name():
    register("A", after=["Z"])
    register("B", priority=9, requires=["A"])
    register("C", priority=5)
    register("Z")
    assert order() == ["C", "Z", "A", "B"]


def test_required_pass_is_selected_with_the_one_that_requires_it():
    register("A")
    register("B", requires=["A"])
    register("C", after=["A"])
    assert order(["B"]) == ["A", "B"]
    assert order(["C"]) == ["C"]


def test_circle_names_its_passes():
    register("A", after=["C"])
    register("B", requires=["A"])
    register("C", after=["B"])
    register("D")
    with pytest.raises(PassError, match="in a circle: A -> C -> B -> A"):
        order()


def test_pass_cannot_run_after_one_of_a_later_stage():
    register("Late", stage=passes.PassStage.AFTER_ORIGIN_GRAPH_OPTIMIZE)
    register("Early", requires=["Late"])
    with pytest.raises(PassError, match=r"'Early' .* after 'Late', which runs in the later stage"):
        order()


def test_missing_requirement_is_an_error_that_names_both():
    register("A", requires=["Gone"])
    with pytest.raises(PassError, match="pass 'A' requires 'Gone', which is not there"):
        order()


def test_requirement_that_failed_skips_the_pass():
    @passes.register_custom_pass(name="A", stage=STAGE, on_error="rollback")
    def fails(graph, context):
        return False

    register("B", requires=["A"])
    graph = chain("a")
    result = run(graph)["B"]
    assert (result.status, types(graph)) == (passes.PassStatus.SKIPPED, ["a"])
    assert result.message == "it requires 'A', which failed"


@pytest.mark.parametrize(
    ("setting", "error", "text"),
    [
        ({"prioritie": 1}, TypeError, "has no setting 'prioritie'; there are"),
        ({"priority": "high"}, TypeError, "priority must be int, got 'high'"),
        ({"requires": "A"}, TypeError, "requires must be a sequence of strings"),
        ({"after": [3]}, TypeError, "after must be non-empty strings, got 3"),
        ({"after": ["P"]}, ValueError, "cannot stand in its own after"),
        ({"max_rewrites": 0}, ValueError, "a number above 0 or None, got 0"),
        ({"max_rewrites": True}, ValueError, "a number above 0 or None, got True"),
        ({"on_error": "ignore"}, ValueError, r"one of \['fail', 'skip', 'rollback'\]"),
        ({"repeat_until_stable": 1}, TypeError, "repeat_until_stable must be bool, got 1"),
    ],
)
def test_wrong_setting_is_refused_and_nothing_is_registered(setting, error, text):
    with pytest.raises(error, match=text):
        register("P", **setting)
    assert passes.get_registered_passes() == ()


def test_name_with_an_at_sign_is_refused():
    with pytest.raises(ValueError, match="must not contain '@'"):
        register("P@2")


@pytest.mark.parametrize(
    ("switch", "left"),
    [
        ({"A": False}, ["B"]),
        ({"ALL": False, "B": True}, ["B"]),
        ({"ALL": False}, []),
        ({"ALL": True, "A": False}, ["B"]),
    ],
)
def test_switch_by_name_goes_before_all(switch, left):
    """Option off, ALL off with one on."""
    register("A")
    register("B")
    assert order(switch=switch) == left


def test_switch_of_the_environment_and_the_option_before_it(monkeypatch):
    register("A")
    register("B")
    monkeypatch.setenv("BRINGUP_PASS_SWITCH", "A:off, NotThere:off")
    assert order() == ["B"]
    assert order(switch={"A": True, "B": False}) == ["A"]


@pytest.mark.parametrize(
    "text",
    ['{"A": "off"}', '{"Switch": {"GraphFusion": {"ALL": "off", "B": "on"}}}'],
)
def test_switch_file_in_either_form(tmp_path, monkeypatch, text):
    """A file switches passes off."""
    register("A")
    register("B")
    (tmp_path / "switch.json").write_text(text)
    monkeypatch.setenv("BRINGUP_PASS_SWITCH", str(tmp_path / "switch.json"))
    assert order() == ["B"]


@pytest.mark.parametrize("text", [None, "", "[]", "{", '{"A": 3}', '{"A": "maybe"}', '"A"'])
def test_switch_file_that_is_absent_or_malformed_is_named(tmp_path, monkeypatch, text):
    """Where GE goes on without switches, this says what is wrong."""
    path = tmp_path / "switch.json"
    if text is not None:
        path.write_text(text)
    monkeypatch.setenv("BRINGUP_PASS_SWITCH", str(path))
    with pytest.raises(SettingError, match="BRINGUP_PASS_SWITCH="):
        order()


def test_requirement_that_is_switched_off_is_an_error():
    register("A")
    register("B", requires=["A"])
    with pytest.raises(PassError, match="'B' requires 'A', which is switched off"):
        order(switch={"A": False})


def test_unknown_switch_or_version_of_an_option_is_refused():
    register("Fuse")
    with pytest.raises(ValueError, match=r"no pass named 'Fuze' .*; did you mean 'Fuse'"):
        order(switch={"Fuze": False})
    with pytest.raises(ValueError, match="no pass named 'Fuze'"):
        order(versions={"Fuze": "1"})


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"names": 5}, "passes must be a list of names or None, got 5"),
        ({"names": None, "switch": ["P"]}, "pass_switch must map names of passes to a bool, got "),
        ({"names": None, "switch": {"P": "off"}}, "to a bool, got 'off' for 'P'"),
        ({"names": None, "versions": "P"}, "pass_versions must map names of passes to a str, got "),
        ({"names": None, "versions": {"P": 1}}, "to a str, got 1 for 'P'"),
    ],
)
def test_arguments_of_another_kind_are_refused_by_name(arguments, words):
    with pytest.raises(TypeError, match=words):
        passes.select_passes(**arguments)


def test_name_that_means_all_passes_is_refused():
    with pytest.raises(ValueError, match="must not be named 'ALL'"):
        passes.register_fusion_pass(name="ALL", stage=passes.PassStage.AFTER_INFER_SHAPE)
