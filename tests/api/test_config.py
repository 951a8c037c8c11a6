import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import weft
from weft import errors
from weft.config import KNOBS, MODES, CompileOptions, check_options, config


def test_every_setting_is_documented_and_few():
    assert len(KNOBS) <= 42
    assert all(len(knob.doc) > 10 and knob.group for knob in KNOBS.values())
    assert all(name in config.describe() for name in KNOBS)


def test_every_setting_is_read_somewhere():
    root = Path(weft.__file__).parent
    text = "".join(path.read_text() for path in root.rglob("*.py"))
    read = set(re.findall(r"\b(?:config|self)\.(\w+)\b(?! =)", text))
    assert KNOBS.keys() <= read


def test_unknown_setting_suggests_the_nearest():
    with pytest.raises(errors.UnknownOption, match="did you mean 'cache_size_limit'"):
        config.cache_size_limits = 3
    with pytest.raises(errors.UnknownOption, match="did you mean 'strict'"):
        _ = config.strikt
    with pytest.raises(AttributeError):
        _ = config.nothing_like_it


@pytest.mark.parametrize(("name", "value"), [
    ("cache_size_limit", "8"), ("cache_size_limit", True), ("cache_size_limit", -1),
    ("strict", 1), ("cache_dir", None)])
def test_wrong_type_is_refused(name, value):
    with pytest.raises(errors.BadValue, match=name):
        setattr(config, name, value)


def test_patch_restores_after_an_exception():
    before = config.cache_size_limit
    with pytest.raises(RuntimeError), config.patch(cache_size_limit=before + 1, trace=True):
        assert config.cache_size_limit == before + 1
        raise RuntimeError
    assert config.cache_size_limit == before
    assert config.trace is False


def test_patch_with_one_bad_value_changes_nothing():
    before = config.cache_size_limit
    with pytest.raises(errors.UnknownOption), config.patch(cache_size_limit=1, nonsense=1):
        pass
    assert config.cache_size_limit == before


def test_cache_key_holds_what_code_depends_on():
    with config.patch(cpp_flags="-O1"):
        changed = config.cache_key()
    assert changed != config.cache_key()
    own = config.cache_key()
    with config.patch(trace=True):
        assert config.cache_key() == own


def _in_subprocess(code, **environ):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                          env={**os.environ, **environ}, check=False)


def test_environment_sets_values():
    code = ("from weft.config import config as c;"
            "print(c.cache_size_limit, c.fallback_random, c.cache_dir)")
    done = _in_subprocess(code, WEFT_CACHE_SIZE_LIMIT="3", WEFT_FALLBACK_RANDOM="true",
                          WEFT_CACHE_DIR="/tmp/x")
    assert done.stdout.split() == ["3", "True", "/tmp/x"], done.stderr


def test_environment_with_a_bad_value_says_which():
    done = _in_subprocess("import weft", WEFT_CACHE_SIZE_LIMIT="many")
    assert done.returncode
    assert "WEFT_CACHE_SIZE_LIMIT='many'" in done.stderr


def test_environment_with_an_unknown_setting_warns_of_it():
    done = _in_subprocess("import weft", WEFT_CACHE_SIZE="3", WEFTED="3", WEFT_SHOW="3")
    assert "WEFT_CACHE_SIZE is no setting of weft (did you mean WEFT_CACHE_SIZE" in done.stderr
    assert done.stderr.count("no setting") == 1


def test_modes_and_options_are_checked():
    for overrides in MODES.values():
        assert check_options(overrides) == dict(overrides)
    with pytest.raises(errors.UnknownOption, match="valid: "):
        check_options({"tritn": True})


def test_compile_options_scope_applies_overrides():
    options = CompileOptions(overrides={"max_autotune": True})
    with options.scope():
        assert config.max_autotune
    assert not config.max_autotune
