"""Which checkpoint is complete, which one a job resumes from, and which ones are deleted, on real folders."""

import json
import math
import os
import shutil
import socket
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from openrlhf_stare.actor_group import checkpoints
from openrlhf_stare.actor_group.checkpoints import is_complete, newest_complete, resume_point
from openrlhf_stare.options import UsageError

STATES = ("zero_pp_rank_{}_mp_rank_00_model_states.pt", "bf16_zero_pp_rank_{}_mp_rank_00_optim_states.pt")


def write_states(checkpoint: Path, numbers: int = 64) -> None:
    """What DeepSpeed writes for two ranks, and then OpenRLHF, with small tensors in place of a model."""
    checkpoint.mkdir(parents=True, exist_ok=True)
    for rank in (0, 1):
        for name in STATES:
            torch.save({"tensor": torch.arange(numbers)}, checkpoint / name.format(rank))
    (checkpoint.parent / "latest").write_text(checkpoint.name)


def openrlhfs(checkpoint: Path, metric: float | None = None, numbers: int = 64) -> Path:
    """A checkpoint that OpenRLHF saved without this plugin."""
    write_states(checkpoint, numbers)
    (checkpoint / "metric.json").write_text(json.dumps({"metric_key": None, "metric_value": metric}))
    return checkpoint


def begun(checkpoint: Path) -> Path:
    """One whose job was killed after all files were written and before it was finished."""
    checkpoints.begin(checkpoint)
    return openrlhfs(checkpoint)


def sizes_of_ranks(checkpoint: Path) -> dict[str, int | None]:
    """The reports of both ranks."""
    sizes = {}
    for rank in (0, 1):
        sizes |= checkpoints.sizes_of(checkpoint, [checkpoint / name.format(rank) for name in STATES])
    return sizes | checkpoints.sizes_of(checkpoint, [checkpoint / checkpoints.METRIC])


def finish(checkpoint: Path) -> None:
    checkpoints.finish(checkpoint, sizes_of_ranks(checkpoint))


def finished(checkpoint: Path, metric: float | None = None, numbers: int = 64) -> Path:
    checkpoints.begin(checkpoint)
    openrlhfs(checkpoint, metric, numbers)
    finish(checkpoint)
    return checkpoint


def metric_of(checkpoint: Path) -> float | None:
    return json.loads((checkpoint / "metric.json").read_text())["metric_value"]


def cut_short(checkpoint: Path, name: str = STATES[1].format(1), by: int = 1) -> None:
    os.truncate(checkpoint / name, (checkpoint / name).stat().st_size - by)


@pytest.fixture
def folder(tmp_path) -> Path:
    return tmp_path / "_actor"


# What is complete


def test_a_checkpoint_is_complete_when_it_is_finished(folder):
    assert not is_complete(folder / "global_step1")
    assert not is_complete(begun(folder / "global_step1"))
    finish(folder / "global_step1")
    assert is_complete(folder / "global_step1")


@pytest.mark.parametrize("name", [*(name.format(1) for name in STATES), "metric.json"])
@pytest.mark.parametrize("damage", ["cut short by a byte", "emptied", "gone"])
def test_a_finished_checkpoint_with_a_damaged_file_is_not_complete(folder, name, damage):
    checkpoint = finished(folder / "global_step1")
    if damage == "gone":
        (checkpoint / name).unlink()
    else:
        os.truncate(checkpoint / name, 0 if damage == "emptied" else (checkpoint / name).stat().st_size - 1)
    assert not is_complete(checkpoint)


def test_a_damaged_manifest_is_not_taken_for_a_checkpoint_without_one(folder):
    checkpoint = finished(folder / "global_step1")
    cut_short(checkpoint, checkpoints.MANIFEST)
    assert not is_complete(checkpoint)


def test_a_file_that_was_cut_short_on_its_way_to_the_disk_is_noticed_when_finishing(folder):
    checkpoint = begun(folder / "global_step1")
    cut_short(checkpoint)
    with pytest.raises(OSError, match="global_step1 is incomplete on the disk: bf16_zero_pp_rank_1_mp_rank_00_optim"):
        finish(checkpoint)
    assert not is_complete(checkpoint)


def test_saving_a_tag_again_starts_from_an_empty_folder(folder):
    checkpoint = finished(folder / "global_step1")
    (checkpoint / "zero_pp_rank_2_mp_rank_00_model_states.pt").touch()  # of a run with more ranks
    checkpoints.begin(checkpoint)
    assert [path.name for path in checkpoint.iterdir()] == [checkpoints.MANIFEST]
    assert not is_complete(checkpoint)


def test_a_checkpoint_of_plain_openrlhf_is_complete_when_its_ranks_had_saved_and_its_files_are_whole(folder):
    assert is_complete(openrlhfs(folder / "global_step1"))
    write_states(folder / "global_step2")  # OpenRLHF's last file is missing
    assert not is_complete(folder / "global_step2")
    for name in STATES:
        cut_short(openrlhfs(folder / "global_step3"), name.format(1))
        assert not is_complete(folder / "global_step3")


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "null",
        "3",
        '"text"',
        "{}",
        '{"files": []}',
        '{"files": {"a": 1}}',
        '{"time": 1, "files": null}',
        "[" * 10**5,
    ]
    + [
        '{"time": "x", "files": {}}',
        '{"time": NaN, "files": {"metric.json": 1}}',
        '{"time": 1, "files": {"\\u0000": 1}}',
    ],
    ids=lambda text: text[:30],
)
def test_a_manifest_that_somebody_else_wrote_is_passed_over(folder, text):
    finished(folder / "global_step1")
    (finished(folder / "global_step2") / checkpoints.MANIFEST).write_text(text)
    assert resume_point([folder]) == (
        "global_step1",
        "Resuming from checkpoint global_step1, past the incomplete global_step2",
    )


def test_no_flipped_bit_of_a_manifest_is_followed(folder):
    """Not to a checkpoint whose time is wrong, either: the order stays."""
    older, newer = finished(folder / "global_step1"), finished(folder / "global_step2")
    (folder / "latest").unlink()
    for checkpoint in (older, newer):
        manifest = checkpoint / checkpoints.MANIFEST
        text = manifest.read_bytes()
        for place in range(len(text)):
            for bit in {0, place % 8}:
                manifest.write_bytes(text[:place] + bytes([text[place] ^ 1 << bit]) + text[place + 1 :])
                tag, _ = newest_complete([folder])
                assert tag == "global_step2" or checkpoint == newer
        manifest.write_bytes(text)


# Which one a job resumes from


def test_the_newest_complete_one_is_taken_by_time_and_not_by_name(folder):
    for step in (8, 9, 10, 2):  # a run of its own began in the folder of another
        finished(folder / f"global_step{step}")
    assert newest_complete([folder]) == ("global_step2", [])


def test_incomplete_ones_are_passed_over(folder):
    finished(folder / "global_step8")
    finished(folder / "global_step9")
    cut_short(finished(folder / "global_step10"))
    begun(folder / "global_step11")  # `latest` names it
    assert newest_complete([folder]) == ("global_step9", ["global_step11", "global_step10"])
    tag, sentence = resume_point([folder])
    assert tag == "global_step9"
    assert sentence == "Resuming from checkpoint global_step9, past the incomplete global_step11, global_step10"


def test_without_anything_to_pass_over_the_sentence_names_the_checkpoint_alone(folder):
    finished(folder / "global_step1")
    assert resume_point([folder]) == ("global_step1", "Resuming from checkpoint global_step1")


def test_latest_edited_by_hand_is_followed(folder):
    for step in (1, 2, 3):
        finished(folder / f"global_step{step}")
    (folder / "latest").write_text("global_step2\n")
    assert newest_complete([folder]) == ("global_step2", [])


@pytest.mark.parametrize(
    "latest",
    [b"", b"global_step9", b"\xff\xfe\x00global_step1", b"../global_step1", None],
    ids=["empty", "names nothing", "no text", "elsewhere", "gone"],
)
def test_a_damaged_latest_does_not_matter(folder, latest):
    finished(folder / "global_step1")
    finished(folder / "global_step2")
    (folder / "latest").unlink()
    if latest is not None:
        (folder / "latest").write_bytes(latest)
    assert newest_complete([folder]) == ("global_step2", [])
    (folder / "latest").unlink(missing_ok=True)
    (folder / "latest").mkdir()
    assert newest_complete([folder]) == ("global_step2", [])


def test_a_flipped_byte_in_any_place_of_a_file_of_tensors_is_found(folder):
    """But for those that nothing reads: torch aligns its tensors with padding."""
    checkpoint = finished(folder / "global_step1", numbers=8)
    file = checkpoint / STATES[0].format(0)
    whole = file.read_bytes()
    assert checkpoints.is_whole(file)
    for place in range(len(whole)):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
        if checkpoints.is_whole(file):
            assert torch.load(file)["tensor"].tolist() == list(range(8)), place


def test_one_with_a_damaged_file_is_passed_over_and_named(folder):
    for step in (1, 2, 3):
        finished(folder / f"global_step{step}")
    cut_short(folder / "global_step3")
    damaged = {"global_step2": "a_model_states.pt"}
    assert resume_point([folder], damaged) == (
        "global_step1",
        "Resuming from checkpoint global_step1, past the incomplete global_step3, "
        "global_step2 (damaged: a_model_states.pt)",
    )
    with pytest.raises(
        checkpoints.NoCompleteCheckpoint, match=r"global_step2 \(damaged: a_model_states.pt\), global_st"
    ):
        resume_point([folder], damaged | {"global_step1": "b.pt"})


def test_a_folder_that_was_copied_keeps_its_order(folder):
    for step in (1, 2):
        finished(folder / f"global_step{step}")
    (folder / "latest").unlink()
    os.utime(folder / "global_step1", (time.time() + 60, time.time() + 60))
    assert newest_complete([folder]) == ("global_step2", [])


def test_a_checkpoint_of_plain_openrlhf_is_ordered_by_the_time_of_its_folder(folder):
    finished(folder / "global_step1")
    openrlhfs(folder / "global_step2")
    (folder / "latest").unlink()
    assert newest_complete([folder]) == ("global_step2", [])
    os.utime(folder / "global_step2", (0, 0))
    assert newest_complete([folder]) == ("global_step1", [])


def test_actor_and_critic_resume_from_the_newest_that_is_complete_in_both(tmp_path):
    actor, critic = tmp_path / "_actor", tmp_path / "_critic"
    for step in (1, 2, 3, 4):
        finished(actor / f"global_step{step}")
    for step in (1, 2, 3):
        finished(critic / f"global_step{step}")
    cut_short(critic / "global_step3")
    begun(critic / "global_step4")
    for folders in ([actor, critic], [critic, actor]):
        assert newest_complete(folders) == ("global_step2", ["global_step4", "global_step3"])


def test_the_critic_counts_if_the_job_has_one_that_was_saved(tmp_path):
    def folders(critic: str | None) -> list[str]:
        args = SimpleNamespace(ckpt=SimpleNamespace(path=tmp_path), critic=SimpleNamespace(model_name_or_path=critic))
        return [path.name for path in checkpoints.model_folders(args)]

    assert folders(critic=None) == folders(critic="model") == ["_actor"]
    (tmp_path / "_critic").mkdir()
    assert folders(critic=None) == ["_actor"]
    assert folders(critic="model") == ["_actor", "_critic"]
    finished(tmp_path / "_actor/global_step1")
    assert folders(critic="model") == ["_actor"]  # the critic came later, and has nothing yet
    # They save side by side. One that is killed when the critic has finished first goes on from the actor's before.
    finished(tmp_path / "_critic/global_step2")
    begun(tmp_path / "_actor/global_step2")
    assert folders(critic="model") == ["_actor"]
    finished(tmp_path / "_actor/global_step2")
    assert folders(critic="model") == ["_actor", "_critic"]


@pytest.mark.parametrize("steps", [(1,), (1, 2, 3)])
def test_a_job_killed_in_the_critics_first_save_goes_on(tmp_path, steps):
    """From the beginning if it is the actor's first, too, and else with a critic that starts anew."""
    args = SimpleNamespace(ckpt=SimpleNamespace(path=tmp_path), critic=SimpleNamespace(model_name_or_path="model"))
    for step in steps:
        finished(tmp_path / f"_actor/global_step{step}")
    begun(tmp_path / f"_critic/global_step{steps[-1]}")
    tag, sentence = resume_point(checkpoints.model_folders(args))
    if len(steps) == 1:
        assert tag is None and "(global_step1 was only begun): started from the beginning" in sentence
    else:
        assert (tag, sentence) == ("global_step3", "Resuming from checkpoint global_step3")


def test_a_process_that_does_not_see_what_the_driver_found_says_so(folder):
    args = SimpleNamespace(ckpt=SimpleNamespace(path=str(folder.parent), resume_from=[str(folder / "global_step1")]))
    with pytest.raises(FileNotFoundError) as caught:
        checkpoints.refuse_other_folder(args)
    assert str(caught.value) == (
        f"--ckpt.path {folder.parent} is not the folder that the driver sees: {folder}/global_step1, from which the "
        f"job resumes, is not there on {socket.gethostname()}. Put it on a file system that all nodes share"
    )
    cut_short(finished(folder / "global_step1"))  # the ranks look for an older one then
    checkpoints.refuse_other_folder(args)
    args.ckpt.resume_from = []
    checkpoints.refuse_other_folder(args)


@pytest.mark.parametrize(
    ("gpus", "stage", "said"),
    [
        (4, 3, "--actor.num_nodes 1 x --actor.num_gpus_per_node 4 are 4 ranks, and {} was saved by 2: give what"),
        (2, 2, "--ds.zero_stage 2 cannot go on with {} of ZeRO-3: give what"),
    ],
)
def test_a_checkpoint_of_other_ranks_or_another_stage_is_refused(folder, gpus, stage, said):
    def args(gpus: int, stage: int) -> SimpleNamespace:
        actor = SimpleNamespace(num_nodes=1, num_gpus_per_node=gpus)
        return SimpleNamespace(actor=actor, ds=SimpleNamespace(zero_stage=stage))

    checkpoint = finished(folder / "global_step1")
    checkpoints.refuse_other_ranks(checkpoint, args(2, 3), "actor")
    with pytest.raises(UsageError) as caught:
        checkpoints.refuse_other_ranks(checkpoint, args(gpus, stage), "actor")
    assert str(caught.value).startswith(said.format(checkpoint))


@pytest.mark.parametrize(
    ("saved", "param_dtype", "said"),
    [("bfloat16", "fp32", "computes in float32"), ("float32", "bf16", "computes in bfloat16")],
)
def test_a_checkpoint_of_a_job_that_computed_in_another_type_is_refused(folder, saved, param_dtype, said):
    checkpoint = finished(folder / "global_step1")
    if saved == "float32":  # DeepSpeed's names then have no prefix
        for file in checkpoint.glob("bf16_*"):
            file.rename(checkpoint / file.name.removeprefix("bf16_"))
    same = {"fp32": "bf16", "bf16": "fp32"}[param_dtype]
    checkpoints.refuse_other_type(checkpoint, same)
    with pytest.raises(UsageError) as caught:
        checkpoints.refuse_other_type(checkpoint, param_dtype)
    assert str(caught.value) == (
        f"--ckpt.load_enable finds {checkpoint}, whose job computed in {saved}, and this one {said}: set "
        f"OPENRLHF_STARE_CPU_DTYPE={saved} to go on with it on a CPU, or start from the model that it saved, without "
        "--ckpt.load_enable"
    )


def test_a_job_killed_while_it_saved_its_first_checkpoint_starts_from_the_beginning(folder):
    folder.mkdir()
    path = folder.parent
    assert resume_point([folder]) == (None, f"no checkpoint in {path}: started from the beginning")
    begun(folder / "global_step1")
    sentence = f"no checkpoint in {path} (global_step1 was only begun): started from the beginning"
    assert resume_point([folder]) == (None, sentence)


@pytest.mark.parametrize("save", [finished, openrlhfs])
def test_where_all_complete_ones_are_damaged_the_job_does_not_start_from_the_beginning(folder, save):
    for step in (1, 2):
        cut_short(save(folder / f"global_step{step}"))
    begun(folder / "global_step3")
    with pytest.raises(checkpoints.NoCompleteCheckpoint) as caught:
        resume_point([folder])
    assert str(caught.value) == (
        f"No checkpoint under {folder.parent} is complete any more (global_step3, global_step2, global_step1): "
        "bring one back, or start from the beginning in another --ckpt.path"
    )


# Which ones are deleted


def left_of(folder: Path, new: str, kept: str | None, max_num: int = 3, max_mem: float = math.inf) -> list[str]:
    deleted = checkpoints.make_room(folder / new, kept, max_num, max_mem, metric_of)
    assert not any(path.exists() for path in deleted)
    return sorted(path.name for path in folder.iterdir() if path.is_dir())


def test_before_the_first_checkpoint_there_is_nothing_to_delete(folder):
    assert checkpoints.make_room(folder / "global_step1", None, 2, math.inf, metric_of) == []


def test_the_oldest_goes_when_there_are_as_many_as_may_be_with_the_new_one(folder):
    for step in (8, 9, 10):
        finished(folder / f"global_step{step}")
    assert left_of(folder, "global_step11", "global_step10", max_num=4) == [
        "global_step10",
        "global_step8",
        "global_step9",
    ]
    assert left_of(folder, "global_step11", "global_step10", max_num=2) == ["global_step10"]


def test_an_incomplete_one_goes_first_then_one_without_metric_then_the_worst(folder):
    for step, metric in enumerate([0.9, 0.2, None, 0.5, 0.8]):
        finished(folder / f"global_step{step}", metric)
    cut_short(folder / "global_step4")
    expected = [0, 1, 2, 3, 4]
    for gone, max_num in ((4, 5), (2, 4), (1, 3), (3, 2)):
        expected.remove(gone)
        assert left_of(folder, "global_step5", None, max_num) == [f"global_step{step}" for step in expected]


def test_the_one_to_resume_from_stays_though_its_metric_is_the_worst(folder):
    for step, metric in enumerate([0.9, 0.8, 0.1]):
        finished(folder / f"global_step{step}", metric)
    assert left_of(folder, "global_step3", "global_step2", max_num=2) == ["global_step2"]


def test_the_one_to_resume_from_stays_though_it_alone_is_larger_than_the_limit(folder):
    for step in (1, 2, 3):
        finished(folder / f"global_step{step}", numbers=20_000)
    size = sum(file.stat().st_size for file in (folder / "global_step1").iterdir())
    gib = size / 2**30
    assert left_of(folder, "global_step4", "global_step3", 9, max_mem=2.5 * gib) == ["global_step2", "global_step3"]
    assert left_of(folder, "global_step4", "global_step3", 9, max_mem=0.5 * gib) == ["global_step3"]


def tags_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.is_dir())


def test_a_new_best_one_replaces_the_old_once_it_is_complete_in_actor_and_critic(tmp_path):
    folders = folder, critic = tmp_path / "_actor", tmp_path / "_critic"
    for one in folders:
        for tag in ("global_step1", "best_global_step1", "global_step2"):
            finished(one / tag, metric=0.5)
    assert left_of(folder, "global_step3", "global_step2", max_num=2) == ["best_global_step1", "global_step2"]
    assert left_of(folder, "best_global_step3", "global_step2", max_num=2) == ["best_global_step1", "global_step2"]
    begun(folder / "best_global_step3")
    assert checkpoints.drop_replaced_best(folder, folders) == []
    finish(folder / "best_global_step3")
    assert checkpoints.drop_replaced_best(folder, folders) == []  # the critic could still be killed
    finished(critic / "best_global_step3")
    for one in folders:
        assert checkpoints.drop_replaced_best(one, folders) == [one / "best_global_step1"]
        assert "best_global_step3" in tags_in(one) and "best_global_step1" not in tags_in(one)


def test_the_best_one_stays_if_it_is_the_one_to_resume_from(folder):
    for tag in ("best_global_step1", "best_global_step2"):
        finished(folder / tag)
    (folder / "latest").write_text("best_global_step1")
    assert checkpoints.drop_replaced_best(folder, [folder]) == []


def test_a_best_one_that_was_only_begun_goes_and_the_one_before_it_stays(folder):
    finished(folder / "best_global_step1")
    begun(folder / "best_global_step2")
    assert left_of(folder, "best_global_step3", "best_global_step1") == ["best_global_step1"]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, None])
def test_a_metric_that_is_not_finite_is_none_and_does_not_change_the_order_of_the_others(folder, value):
    for step, metric in enumerate([0.9, value, 0.2, value, 0.8, 0.1]):
        finished(folder / f"global_step{step}", metric)
    expected = [0, 1, 2, 3, 4, 5]
    for gone, max_num in ((1, 6), (3, 5), (5, 4), (2, 3), (4, 2)):
        expected.remove(gone)
        assert left_of(folder, "global_step6", None, max_num) == [f"global_step{step}" for step in expected]


def test_what_is_no_checkpoint_is_neither_counted_nor_deleted(folder):
    for step in (1, 2):
        finished(folder / f"global_step{step}")
    for name in ("notes", "global_step0", "global_step1_copy", "best_of_all"):
        (folder / name).mkdir()
        (folder / name / "notes.txt").write_text("mine")
    shutil.copytree(folder / "global_step1", folder / "global_step1_copy", dirs_exist_ok=True)
    mine = ["best_of_all", "global_step0", "global_step1_copy", "notes"]
    assert left_of(folder, "global_step3", "global_step2", max_num=3) == sorted(
        [*mine, "global_step1", "global_step2"]
    )
    assert left_of(folder, "global_step3", "global_step2", 2, max_mem=0) == sorted([*mine, "global_step2"])
    assert newest_complete([folder])[1] == []  # nothing is called incomplete
    begun(folder / "global_step0")
    assert (folder / "global_step0/notes.txt").read_text() == "mine"


def test_of_a_link_nothing_is_deleted_outside_the_folder(tmp_path):
    """Whole models and checkpoints that were moved to a larger disk."""
    folder, elsewhere = tmp_path / "run/_actor", tmp_path / "elsewhere"
    for tag in ("global_step1", "global_step2"):
        finished(elsewhere / tag)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / tag).symlink_to(elsewhere / tag)
    (elsewhere / "model").mkdir()
    (elsewhere / "model/model.safetensors").touch()
    (folder / "gone").symlink_to(elsewhere / "nowhere")
    before = sorted(elsewhere.rglob("*"))
    finished(folder / "global_step3")
    (folder.parent / "global_step3_hf").symlink_to(elsewhere / "model")
    assert newest_complete([folder]) == ("global_step3", [])
    # Nor are they counted.
    assert left_of(folder, "global_step4", "global_step2", 2) == ["global_step1", "global_step2", "global_step3"]
    assert left_of(folder, "global_step4", "global_step2", 2, max_mem=0) == ["global_step1", "global_step2"]
    assert newest_complete([folder]) == ("global_step2", [])
    finished(folder / "global_step2")  # anew
    assert not (folder / "global_step2").is_symlink() and not (folder.parent / "global_step3_hf").exists()
    assert sorted(elsewhere.rglob("*")) == before and is_complete(elsewhere / "global_step2")


def test_one_that_cannot_be_deleted_does_not_end_the_job(folder, monkeypatch, capsys):
    for step in (1, 2, 3):
        finished(folder / f"global_step{step}")

    def refused(checkpoint):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(checkpoints, "delete", refused)
    assert left_of(folder, "global_step4", "global_step3", max_num=2) == [f"global_step{step}" for step in (1, 2, 3)]
    said = capsys.readouterr().err
    assert f"The old checkpoint {folder}/global_step1 could not be deleted ([Errno 13] Permission denied)" in said


@pytest.mark.parametrize("saved_by", [finished, begun, openrlhfs])
def test_the_whole_model_beside_a_checkpoint_goes_with_it(tmp_path, saved_by):
    """`--ckpt.save_hf` at every save: 15 GB each for a 7B model."""
    actor, critic = tmp_path / "_actor", tmp_path / "_critic"
    for step in range(1, 6):
        for folder in (actor, critic):
            saved_by(folder / f"global_step{step}")
        (tmp_path / f"global_step{step}_hf").mkdir()
        (tmp_path / f"global_step{step}_hf/model.safetensors").write_bytes(b"weights")
    checkpoints.make_room(critic / "global_step6", None, 2, math.inf, metric_of)
    models = sorted(path.name for path in tmp_path.glob("*_hf"))
    assert len(models) == 5  # the critic has none
    checkpoints.make_room(actor / "global_step6", "global_step1", 3, math.inf, metric_of)
    left = sorted(path.name for path in actor.iterdir() if path.is_dir())
    assert sorted(path.name for path in tmp_path.glob("*_hf")) == [f"{name}_hf" for name in left]
    assert len(left) == 2 and "global_step1" in left


def test_what_a_kill_left_of_a_whole_model_goes_before_the_actor_s_next_checkpoint(tmp_path):
    for name in ("global_step1_hf.draft", "best_global_step1_hf.draft", "mine_hf.draft", "global_step1_hf"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").write_bytes(b"weights")
    (tmp_path / "global_step2_hf.draft").symlink_to(tmp_path / "mine_hf.draft")
    before = sorted(tmp_path.rglob("*"))
    checkpoints.make_room(tmp_path / "_critic/global_step2", None, 2, math.inf, metric_of)
    assert sorted(tmp_path.rglob("*")) == before  # the actor may be writing one
    checkpoints.make_room(tmp_path / "_actor/global_step2", None, 2, math.inf, metric_of)
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == ["global_step1_hf", "global_step2_hf.draft", "mine_hf.draft"]
    assert (tmp_path / "mine_hf.draft/model.safetensors").exists()


def test_the_whole_models_count_for_the_limit_of_the_disk(tmp_path):
    for step in (1, 2, 3):
        finished(tmp_path / f"_actor/global_step{step}")
        (tmp_path / f"global_step{step}_hf").mkdir()
        (tmp_path / f"global_step{step}_hf/model.safetensors").write_bytes(bytes(2**20))
    assert left_of(tmp_path / "_actor", "global_step4", "global_step3", 9, max_mem=2.5 / 1024) == [
        "global_step2",
        "global_step3",
    ]


# All of it, killed at any moment


def save(folder: Path, tag: str, folders: list[Path], **limits) -> None:
    """What the ranks of one model do to the disk when they save."""
    new = folder / tag
    checkpoints.before_saving(new, folders, metric=metric_of, **limits)
    openrlhfs(new)
    checkpoints.after_saving(new, folders, sizes_of_ranks(new))


def killed_before_operation(count: int, job) -> bool:
    """Run `job` in a process that dies right before its `count`-th change to the disk; whether it did."""
    pid = os.fork()
    if pid == 0:
        seen = 0

        def die_in_time(event: str, arguments: tuple) -> None:
            nonlocal seen
            writes = event == "open" and isinstance(arguments[1], str) and set(arguments[1]) & set("wax+")
            if writes or event in ("os.mkdir", "os.remove", "os.rmdir", "os.rename", "os.truncate"):
                seen += 1
                if seen > count:
                    os._exit(9)

        sys.addaudithook(die_in_time)
        try:
            job()
        except BaseException:
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    assert code in (0, 9)
    return code == 9


@pytest.mark.parametrize("new", ["global_step4", "global_step2", "best_global_step4"])
def test_a_job_killed_at_any_moment_of_saving_leaves_a_checkpoint_to_resume_from(tmp_path, new):
    """It resumed from step 1, because the critic's step 2 was cut short, and its limits are too small for anything."""
    for folder in (tmp_path / "start/_actor", tmp_path / "start/_critic"):
        for tag in ("best_global_step1", "global_step2", "global_step1"):
            finished(folder / tag, metric=0.5)
    cut_short(tmp_path / "start/_critic/global_step2")
    count, killed = 0, True
    while killed:
        path = shutil.copytree(tmp_path / "start", tmp_path / str(count))
        folders = [path / "_actor", path / "_critic"]

        def job(folders=folders):
            for folder in folders:
                save(folder, new, folders, max_num=2, max_mem=0)

        killed = killed_before_operation(count, job)
        tag, _ = newest_complete(folders)
        saved = all(is_complete(one / new) for one in folders)
        assert tag == (new if saved else "global_step1")
        assert saved or killed  # killed and saved: while it deleted the old best one
        # There is always a best one, too.
        assert any(all(is_complete(one / best) for one in folders) for best in ("best_global_step1", new))
        count += 1
    assert count > 20
    # The last one was not killed: the critic's, saved after the actor's, found both of the new ones complete.
    assert (folders[1] / "best_global_step1").exists() == (new != "best_global_step4")


@pytest.mark.parametrize("saved_by", [finished, openrlhfs])
def test_what_is_left_of_a_deletion_is_not_complete(folder, saved_by):
    count, killed = 0, True
    while killed:
        checkpoint = saved_by(folder / f"global_step{count}")
        killed = killed_before_operation(count, lambda checkpoint=checkpoint: checkpoints.delete(checkpoint))
        assert is_complete(checkpoint) == (count == 0)
        count += 1
    assert not checkpoint.exists()
