"""check: all problems of data and configurations at once."""

from __future__ import annotations

import json

import pytest

from fairseq_interference.cli import main


@pytest.fixture()
def data(tmp_path):
    folder = tmp_path / "data-bin"
    for lang in ("xa", "xb"):
        (folder / lang).mkdir(parents=True)
        for split in ("train", "valid"):
            for kind in ("bin", "idx"):
                (folder / lang / f"{split}.{kind}").write_bytes(b"x")
    (folder / "dict.txt").write_text("ab@@ 3\nc 2\n")
    (folder / "languages.txt").write_text("xa\nxb\n")
    return folder


def check(capsys, *arguments):
    code = main(["check", *map(str, arguments)])
    return code, capsys.readouterr().out


def test_sound_data(data, capsys):
    code, printed = check(capsys, "--data", data)
    assert code == 0 and "2 languages (xa,xb), one dictionary" in printed and "nothing is in the way" in printed


def test_all_problems_together(data, capsys):
    (data / "xb" / "train.bin").write_bytes(b"")
    (data / "xa" / "valid.idx").unlink()
    (data / "xa" / "dict.txt").write_text("other 1\n")
    (data / ".ipynb_checkpoints").mkdir()
    (data / "dict.txt").write_text("a 1\na 2\n<mask> 3\nbroken\n")
    code, printed = check(capsys, "--data", data, "--langs", "xa,xb,xc")
    assert code == 1
    for part in (
        "dict.txt:2: 'a' stands in line 1 already",
        "dict.txt:3: the special symbol <mask>",
        "dict.txt:4: not 'piece count'",
        "xb/train.bin: empty",
        "is not the dictionary of",
        "no folder for language xc",
        "xc is not among xa,xb",
        "xa is left out of the macro average",
        ".ipynb_checkpoints: not a language code, ignored",
        "7 problems",
    ):
        assert part in printed, part


@pytest.mark.parametrize(
    "content, part",
    [(b"version https://git-lfs.github.com/spec/v1\n", "Git-LFS"), (b"", "empty"), (None, "no dictionary")],
)
def test_broken_dictionary(data, capsys, content, part):
    (data / "dict.txt").unlink()
    if content is not None:
        (data / "dict.txt").write_bytes(content)
    code, printed = check(capsys, "--data", data)
    assert code == 1 and part in printed


def test_the_hosts_overwrite_flag_is_fine(data, capsys):
    (data / "dict.txt").write_text("ab@@ 3\n<unk> 2 #fairseq:overwrite\nx\u2028y 1\n", encoding="utf-8")
    code, printed = check(capsys, "--data", data)
    assert code == 0, printed


def test_a_language_of_another_dictionary(data, capsys):
    (data / "xb" / ".done").write_text('{"inputs": {"dictionary": "0"}, "settings": {}}')
    code, printed = check(capsys, "--data", data)
    assert code == 1 and "another dictionary" in printed and "1 problem" in printed


def test_broken_tokenizer(data, capsys):
    (data / "tokenizer").mkdir()
    (data / "tokenizer" / "tokenizer.json").write_text(json.dumps({"format": 99}))
    code, printed = check(capsys, "--data", data)
    assert code == 1 and "tokenizer.json" in printed


def test_absent_folder_and_nothing_to_check(tmp_path, capsys):
    assert check(capsys, "--data", tmp_path / "absent")[0] == 1
    assert check(capsys)[0] == 2


CONFIG = """
task: xlm_masked_lm
arch: {arch}
langs: {langs}
save_dir: {save}
train:
  {flag}: 10
"""


def write_config(path, **changes):
    values = {"arch": "xlm_joint_tiny", "langs": "[xa, xb]", "save": path.parent / "save", "flag": "max-update"}
    path.write_text(CONFIG.format(**{**values, **changes}))
    return path


def test_configuration(data, capsys, tmp_path):
    good = write_config(tmp_path / "good.yaml")
    code, printed = check(capsys, "--config", good, "--data", data)
    assert code == 0 and "every flag is known" in printed
    bad = write_config(tmp_path / "bad.yaml", flag="max-updates-typo", langs="[xa, xz]")
    worse = tmp_path / "worse.yaml"
    worse.write_text("arch: x\nflavour: y\n")
    code, printed = check(capsys, "--config", good, bad, worse, "--data", data)
    assert code == 1
    for part in ("max-updates-typo", "no folder for language xz", "flavour", "no task"):
        assert part in printed, part
