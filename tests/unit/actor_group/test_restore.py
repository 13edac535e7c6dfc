"""What the policy actor takes from a checkpoint, and what it says of it."""

import dataclasses
import itertools
import re
import shlex
import subprocess
import sys
from types import SimpleNamespace

import pytest
import ray
import torch
from flag_parser import parse
from safetensors import SafetensorError
from torchdata.stateful_dataloader import StatefulDataLoader

from openrlhf_stare import EntropyControl, EntropyController, StareOptions, worker
from openrlhf_stare.driver import command, flags
from openrlhf_stare.notices import ENGINES_READY

worker.install()

from openrlhf_stare.actor_group import critic, policy_actor  # noqa: E402
from openrlhf_stare.actor_group.critic import StareCriticActor  # noqa: E402
from openrlhf_stare.actor_group.other_flags import other_flags, training_flags  # noqa: E402
from openrlhf_stare.actor_group.policy_actor import StarePolicyActor  # noqa: E402
from openrlhf_stare.actor_group.saving import kept_adam  # noqa: E402
from openrlhf_stare.methods.stare import Stare  # noqa: E402

CONTROL, STARE = EntropyControl(schedule="adaptive", target=0.4), StareOptions(variant="C2")


def fresh_controller(control: EntropyControl = CONTROL, stare: StareOptions = STARE) -> EntropyController:
    return EntropyController(control, Stare(stare).strengths)


def saved_states() -> dict:
    """What a job saves after a rollout of a low entropy."""
    actor, _ = actor_with({})
    actor.controller.update(0.1)
    return {"global_step": 7, "entropy": actor._state()}


def actor_with(
    checkpoint_states: dict, control: EntropyControl = CONTROL, stare: StareOptions = STARE, part: str = "stare"
) -> tuple[StarePolicyActor, list[str]]:
    """One that has loaded this from a checkpoint, and what it has said."""
    said = []
    actor = StarePolicyActor.__new__(StarePolicyActor)
    actor.part, actor.checkpoint_states, actor._notice = part, checkpoint_states, said.append
    actor.loss, actor.controller = SimpleNamespace(method=Stare(stare)), fresh_controller(control, stare)
    actor._restore(checkpoint_states)
    return actor, said


def test_a_checkpoint_of_the_end_of_an_episode_goes_on_with_the_next(tmp_path):
    """A loader that was used up begins anew: the prompts of the episode would be trained on twice."""
    loader = StatefulDataLoader(range(5), batch_size=2)
    rows = iter(loader)
    for batches, episode in ((3, 1), (1, 2)):  # the second time the loader finds that there are no more
        next(itertools.islice(rows, batches - 1, None), None)
        actor, _ = actor_with({})
        actor.checkpoint_states = {"episode": 1, "global_step": 3, "data_loader_state_dict": loader.state_dict()}
        states = actor.get_checkpoint_states()
        assert states == {**actor.checkpoint_states, "episode": episode}
    resumed = StatefulDataLoader(range(5), batch_size=2)
    resumed.load_state_dict(states["data_loader_state_dict"])
    assert len(list(resumed)) == 3
    assert actor_with({})[0].get_checkpoint_states()["episode"] == 0


def adam_of_a_checkpoint(**saved) -> tuple:
    """An optimizer of OpenRLHF's two groups and its scheduler, which have loaded what another one saved."""

    def made(lr: float = 1e-6, betas: tuple = (0.9, 0.95), eps: float = 1e-8, weight_decay: float = 0.0) -> tuple:
        groups = [
            {"params": [torch.nn.Parameter(torch.zeros(1))], "weight_decay": decay} for decay in (weight_decay, 0.0)
        ]
        optimizer = torch.optim.AdamW(groups, lr=lr, betas=betas, eps=eps)
        return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5)

    loaded = made()
    for own, of_checkpoint in zip(loaded, made(**saved), strict=True):
        own.load_state_dict(of_checkpoint.state_dict())
    return loaded


@pytest.mark.parametrize(
    ("optim", "saved", "said"),
    [
        ("adam", {}, None),
        ("adam", {"lr": 1e-3}, "--actor.adam.lr 1e-06 has no effect: .* checkpoint's optimizer, which has lr 0.001."),
        ("adam", {"weight_decay": 0.1}, "--actor.adam.weight_decay 0 has no effect: .* weight_decay 0.1. To change"),
        (
            "adam",
            {"betas": (0.9, 0.999), "eps": 1e-6},
            "--actor.adam.betas 0.9 0.95, --actor.adam.eps 1e-08 have no effect: .* has betas 0.9 0.999, eps 1e-06.",
        ),
        ("muon", {"lr": 1e-3}, None),
    ],
)
def test_what_of_adam_the_checkpoint_overrules_is_told(optim, saved, said):
    options = parse("--actor.optim", optim, "--actor.adam.lr", "1e-6", "--actor.adam.betas", "0.9", "0.95").actor
    sentence = kept_adam(options, "actor", *adam_of_a_checkpoint(**saved))
    assert sentence is None if said is None else re.match(said, sentence)


JOB = "--actor.model_name_or_path a --data.prompt_dataset p --reward.remote_url http://me:SECRET@host:1/get?key=SECRET"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("", None),
        # Where, how fast, how long, and what is told elsewhere.
        ("--actor.num_gpus_per_node 4 --train.micro_batch_size 2 --train.num_episodes 9 --vllm.num_engines 2", None),
        ("--ckpt.path new --logger.wandb.run_name new --eval.steps 3 --console compact --look.prompts 2", None),
        ("--policy_loss stare --entropy.target 0.2 --stare.reweight_w 2 --actor.adam.lr 3", None),
        ("--reward.remote_url http://you:OTHER@host:1/get?key=OTHER", None),
        ("--actor.eps_clip_low_high 0.2 0.3", "(actor.eps_clip_low_high None -> [0.2, 0.3]): from here on"),
        (
            "--data.prompt_dataset q --train.seed 7",
            "(train.seed 42 -> 7, data.prompt_dataset p -> q): from here on this job's hold",
        ),
        (
            "--actor.model_name_or_path b",
            "(actor.model_name_or_path a -> b): from here on this job's hold, but the weights are the checkpoint's "
            "and not those of --actor.model_name_or_path",
        ),
        ("--reward.remote_url http://other/", "(reward.remote_url ['http://host:1/get'] -> ['http://other/'])"),
        ("--data.input_template 'Q:\n{}'", "(data.input_template None -> Q:\\n{})"),
    ],
    ids=lambda value: "" if value is None else value[:40],
)
def test_flags_other_than_the_checkpoints_are_told_in_one_line(words, said):
    saved = training_flags(with_urls(JOB))
    assert "SECRET" not in str(saved)
    sentence = other_flags(saved, with_urls(f"{JOB} {words}"))
    if said is None:
        assert sentence is None
    else:
        assert sentence.startswith(f"The checkpoint was made with other flags {said}") and "\n" not in sentence


def test_another_clip_range_is_told_once():
    """Of `--actor.eps_clip` OpenRLHF makes the pair."""
    job = f"{JOB} --vllm.num_engines 1"
    saved, now = (command.settle(flags.parse(f"{job} {words}".split())) for words in ("", "--actor.eps_clip 0.3"))
    sentence = other_flags(training_flags(saved), now)
    assert "(actor.eps_clip_low_high [0.2, 0.2] -> [0.3, 0.3]): from here on" in sentence


def with_urls(words: str) -> SimpleNamespace:
    """The arguments, with the addresses in a list, which OpenRLHF makes of them."""
    args = parse(*shlex.split(words))
    args.reward.remote_url = args.reward.remote_url.split(",")
    return args


def test_of_a_checkpoint_from_before_flags_were_kept_and_of_a_newer_flag_nothing_is_said():
    args = parse(*JOB.split())
    assert other_flags({}, args) is None
    saved = training_flags(args)
    del saved["rollout.top_p"]
    assert other_flags(saved, args) is None


def test_a_checkpoint_has_the_flags_that_it_was_made_with(monkeypatch):
    saved = []
    monkeypatch.setattr(policy_actor, "refuse_non_finite", lambda *of: None)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.distributed, "barrier", lambda *of, **named: None)
    actor, _ = actor_with({})
    actor.strategy = SimpleNamespace(args=parse(*JOB.split()), save_ckpt=lambda *of, **named: saved.append(of[5]))
    actor.disable_ds_ckpt, actor.save_hf_ckpt, actor.actor = False, False, SimpleNamespace(model=None)
    actor.save_checkpoint("global_step1", {"global_step": 1})
    assert saved[0]["training_flags"] == training_flags(actor.strategy.args) and saved[0]["global_step"] == 1


@pytest.mark.parametrize("actor_class", [StarePolicyActor, StareCriticActor])
def test_a_rank_that_does_not_see_the_checkpoint_ends_the_job_before_it_loads_a_model(tmp_path, actor_class):
    """Without it the others would wait for this one for ever, or the job would start anew in silence."""
    ckpt = SimpleNamespace(path=str(tmp_path), load_enable=True, resume_from=[str(tmp_path / "_actor/global_step1")])
    strategy = SimpleNamespace(args=SimpleNamespace(ckpt=ckpt))
    with pytest.raises(FileNotFoundError, match="Put it on a file system that all nodes share"):
        actor_class.__new__(actor_class).init_model_from_pretrained(strategy, "model", 1)


@pytest.mark.parametrize("rank", [0, 1])
def test_one_rank_says_that_the_engines_are_ready(monkeypatch, capsys, rank):
    monkeypatch.setattr(ray, "get", lambda refs: refs)
    engine = SimpleNamespace(get_num_unfinished_requests=SimpleNamespace(remote=lambda: 0))
    actor = StarePolicyActor.__new__(StarePolicyActor)
    actor._rank = rank
    with pytest.raises(AttributeError, match="policy_loss"):  # after it: the arguments are none of a whole job
        args = SimpleNamespace(ckpt=SimpleNamespace())
        actor.init_model_from_pretrained(SimpleNamespace(args=args), "model", 1, [engine])
    assert (ENGINES_READY in capsys.readouterr().err) == (rank == 0)


DISK_FULL = "[enforce fail at inline_container.cc:672] . unexpected pos 576 vs 534"  # what torch.save says of one


FULL = "No space left on device (os error 28)"  # what tokenizers says, and safetensors after a few words


@pytest.mark.parametrize("kind", ["actor", "critic"])
@pytest.mark.parametrize("saved", ["checkpoint global_step1", "final model"])
@pytest.mark.parametrize(
    ("error", "is_disk"),
    [
        (OSError(28, "No space left on device"), True),
        (RuntimeError(DISK_FULL), True),
        (SafetensorError(f"Error while serializing: I/O error: {FULL}"), True),
        (Exception(FULL), True),
        (SafetensorError("Error while serializing: invalid shape"), False),
        (torch.OutOfMemoryError("CUDA out of memory"), False),
        (torch.distributed.DistBackendError("NCCL error: unhandled system error"), False),
        (RuntimeError("Connection closed by peer"), False),
        (ConnectionResetError("reset by peer"), False),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_only_an_error_of_the_disk_is_called_one(tmp_path, monkeypatch, kind, saved, error, is_disk):
    def full(*args, **named):
        raise error

    # Nobody has made the last folder yet.
    ckpt = SimpleNamespace(path=str(tmp_path), output_dir=str(tmp_path / "models/one"), max_num=3, max_mem=1000)
    args = SimpleNamespace(ckpt=ckpt, train=SimpleNamespace(enable_ema=False))
    actor_class, module = {"actor": (StarePolicyActor, policy_actor), "critic": (StareCriticActor, critic)}[kind]
    actor = actor_class.__new__(actor_class)
    actor.strategy = SimpleNamespace(args=args, save_ckpt=full, save_model=full)
    actor.disable_ds_ckpt, actor.tokenizer, actor.critic = False, "one", None
    actor.actor = SimpleNamespace(model=SimpleNamespace(global_steps=1))
    monkeypatch.setattr(module, "refuse_non_finite", lambda *of: None)
    actor.part, actor.loss, actor.controller = "openrlhf", None, EntropyController(EntropyControl(schedule="open"), ())
    with pytest.raises(type(error) if not is_disk else OSError) as raised:
        actor.save_model() if saved == "final model" else actor.save_checkpoint("global_step1")
    assert (raised.value is error) != is_disk
    folder = f"--ckpt.output_dir {ckpt.output_dir}" if saved == "final model" else f"--ckpt.path {ckpt.path}"
    what = saved if kind == "actor" else f"critic's {saved}"
    assert str(raised.value).startswith(f"The {what} could not be written to {folder}, where ") == is_disk


def test_what_safetensors_and_tokenizers_say_of_a_full_disk_is_known(tmp_path):
    script = f"""
import resource, torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models
from openrlhf_stare.actor_group.saving import full_disk_is_told
resource.setrlimit(resource.RLIMIT_FSIZE, (99, 99))  # met as a full disk is, by a write that fails
for save in (lambda path: save_file({{"a": torch.zeros(999)}}, path), Tokenizer(models.BPE()).save):
    try:
        with full_disk_is_told("final model", "--ckpt.output_dir", "{tmp_path}"):
            save("{tmp_path}/file")
    except OSError as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    lines = done.stdout.splitlines()
    assert len(lines) == 2, done
    for line in lines:
        assert line.startswith("The final model could not be written") and "File too large (os error 27)" in line


def test_with_the_same_flags_the_controller_goes_on_without_a_word():
    states = saved_states()
    actor, said = actor_with(states)
    assert actor.controller.state_dict() == states["entropy"]["controller"]
    assert actor.controller.values["reweight_w"] == 1.11
    assert said == []
    assert actor.get_checkpoint_states() is states


def test_a_checkpoint_without_the_controllers_state_starts_a_fresh_one():
    actor, said = actor_with({"global_step": 7})
    assert actor.controller.state_dict() == fresh_controller().state_dict()
    assert said == ["The checkpoint has no state of the entropy's controller, which starts fresh"]


@pytest.mark.parametrize(
    ("control", "stare", "named", "goes_on"),
    [
        ({"target": 0.6}, {}, "entropy.target 0.4 -> 0.6", True),
        ({"step": 0.1}, {"w_max": 4.0}, "entropy.step 0.01 -> 0.1, stare.w_max 1.5 -> 4.0", True),
        ({"schedule": "pi"}, {}, "entropy.schedule adaptive -> pi", False),
        ({}, {"reweight_w": 1.2}, "stare.reweight_w 1.1 -> 1.2", False),
        ({}, {"reweight_m": 0.8}, "stare.reweight_m 0.9 -> 0.8", False),
    ],
    ids=str,
)
def test_what_differs_is_named_and_the_flags_are_followed(control, stare, named, goes_on):
    control, stare = dataclasses.replace(CONTROL, **control), dataclasses.replace(STARE, **stare)
    states = saved_states()
    actor, said = actor_with(states, control, stare)
    fresh = fresh_controller(control, stare).state_dict() | {
        "updates": 1,
        "first_entropy": 0.1,
    }  # an annealed target goes on
    assert actor.controller.state_dict() == (states["entropy"]["controller"] if goes_on else fresh)
    assert actor.controller.control == control
    start = "goes on from the checkpoint" if goes_on else "starts fresh"
    assert said == [f"The flags win where the checkpoint differs ({named}); the controller {start}"]


def test_the_checkpoint_of_another_method_starts_a_fresh_controller_in_the_same_rollout():
    actor, said = actor_with(saved_states(), part="kl_cov")
    assert actor.controller.state_dict() == fresh_controller().state_dict() | {"updates": 1, "first_entropy": 0.1}
    assert said == ["The checkpoint was made with stare: the controller starts fresh"]


def test_under_another_variant_the_controller_starts_afresh():
    stare = dataclasses.replace(STARE, variant="O1")
    actor, said = actor_with(saved_states(), stare=stare)
    assert actor.controller.state_dict() == fresh_controller(stare=stare).state_dict() | {
        "updates": 1,
        "first_entropy": 0.1,
    }
    assert said == ["The flags win where the checkpoint differs (stare.variant C2 -> O1); the controller starts fresh"]


def test_without_a_method_the_rollouts_below_stop_below_are_counted_on():
    control = EntropyControl(schedule="open", stop_below=0.2, stop_after=5)
    before = EntropyController(control, ())
    before.update(0.1)
    flags = {f"entropy.{name}": value for name, value in vars(control).items()}
    state = {"method": "openrlhf", "flags": flags, "controller": before.state_dict()}
    for method, resumed_with, counted in (
        ("openrlhf", control, 1),
        ("tpo", control, 0),
        ("openrlhf", dataclasses.replace(control, stop_after=6), 0),  # a remedy
    ):
        actor = StarePolicyActor.__new__(StarePolicyActor)
        actor.part, actor.loss, actor.controller = method, None, EntropyController(resumed_with, ())
        actor._restore({"global_step": 1, "entropy": state})
        assert actor.controller.low_rollouts == counted


@pytest.mark.parametrize("method", ["stare", "openrlhf"])
def test_after_a_collapse_a_higher_target_gets_its_rollouts_and_the_same_flags_stop_again(method):
    """The newest checkpoint is that of the rollout before the last."""
    control = EntropyControl(schedule="gate" if method == "stare" else "open", stop_below=0.2, stop_after=3)

    def actor_of(checkpoint: dict, control: EntropyControl) -> StarePolicyActor:
        if method == "stare":
            return actor_with(checkpoint, control)[0]
        actor = StarePolicyActor.__new__(StarePolicyActor)
        actor.part, actor.loss, actor.controller = method, None, EntropyController(control, ())
        actor._restore(checkpoint)
        return actor

    first = actor_of({}, control)
    for _ in range(2):
        first.controller.update(0.1)
    checkpoint = {"global_step": 2, "entropy": first._state()}
    first.controller.update(0.1)
    assert first.controller.stop

    again = actor_of(checkpoint, control)
    again.controller.update(0.1)
    assert again.controller.stop
    remedied = actor_of(checkpoint, dataclasses.replace(control, target=0.6))
    for _ in range(2):
        remedied.controller.update(0.1)
        assert not remedied.controller.stop
    assert remedied.controller.updates == 4


@pytest.mark.parametrize(
    ("remedy", "counted"), [({}, 2), ({"target": 0.6}, 0), ({"stop_after": 9}, 0), ({"stop_below": 0.1}, 0)], ids=str
)
def test_after_a_remedy_the_rollouts_below_stop_below_are_counted_anew(remedy, counted):
    """A job that was ended for a collapse goes on from a checkpoint of the rollouts before, some of them counted."""
    control = dataclasses.replace(CONTROL, stop_below=0.2, stop_after=3)
    actor, _ = actor_with({}, control)
    actor.controller.update(0.1)
    actor.controller.update(0.1)
    states = {"global_step": 7, "entropy": actor._state()}
    resumed, _ = actor_with(states, dataclasses.replace(control, **remedy))
    assert resumed.controller.low_rollouts == counted
    resumed.controller.update(0.05)
    assert (resumed.controller.stop is None) == bool(remedy)


@pytest.mark.parametrize("saved, resumed", [("stare", "openrlhf"), ("openrlhf", "tpo"), ("openrlhf", "openrlhf")])
def test_the_first_entropy_stays_the_runs_under_any_loss(saved, resumed):
    control = EntropyControl(schedule="open", stop_below="50%")
    before = EntropyController(control, ())
    before.update(0.8)
    state = {"method": saved, "flags": {}, "controller": before.state_dict()}
    actor = StarePolicyActor.__new__(StarePolicyActor)
    actor.part, actor.loss, actor.controller = resumed, None, EntropyController(control, ())
    actor._restore({"global_step": 1, "entropy": state})
    assert (actor.controller.first_entropy, actor.controller.updates) == (0.8, 1)
    assert "--entropy.stop_below 50% is 0.4 nats" in actor.controller.percentages


def test_an_option_that_is_newer_than_the_checkpoint_is_no_difference():
    states = saved_states()
    del states["entropy"]["flags"]["stare.selection"]
    actor, said = actor_with(states, stare=dataclasses.replace(STARE, selection="radix"))
    assert actor.controller.state_dict() == states["entropy"]["controller"]
    assert said == []


def test_where_nothing_was_loaded_openrlhfs_trainer_is_told_to_begin():
    actor, said = actor_with({})
    assert actor.controller.state_dict() == fresh_controller().state_dict()
    assert said == []
    assert actor.get_checkpoint_states()["global_step"] == actor.get_checkpoint_states()["episode"] == 0
