"""Our flags in OpenRLHF's own parser."""

import dataclasses
import pickle

import pytest
from flag_parser import openrlhf_parser, parse, parser_with_ours

from openrlhf_stare import EntropyControl, StareOptions, TpoConfig
from openrlhf_stare.driver import command, flags
from openrlhf_stare.options import UsageError, given

FIELDS = dataclasses.fields(StareOptions)
DEFAULTS = {field.name: field.default for field in FIELDS}
TPO_DEFAULTS = {field.name: field.default for field in dataclasses.fields(TpoConfig)}
ALWAYS_THERE = {
    f"{part}.{field.name}": field for part, of in flags.CONFIGS.items() for field in dataclasses.fields(of)
}
IF_GIVEN = {
    f"{part}.{field.name}": field
    for part, of in ({"entropy": EntropyControl} | flags.method_options()).items()
    for field in dataclasses.fields(of)
}


# A command of the kind that the cluster recipes use.
TYPICAL = """--actor.model_name_or_path model --reward.remote_url http://host:1/score --data.prompt_dataset prompts
    --algo.advantage.estimator group_norm --rollout.batch_size 64 --rollout.n_samples_per_prompt 8
    --train.batch_size 512 --vllm.num_engines 4 --vllm.tensor_parallel_size 2 --ds.zero_stage 3 --actor.adam.lr 5e-7
    --algo.kl.init_coef 0 --actor.eps_clip_low_high 0.2 0.28 --train.async_enable
    --ds.packing_samples --use_ms""".split()


def test_one_help_shows_openrlhfs_flags_and_ours():
    text = parser_with_ours().format_help()
    ours = [
        "--policy_loss {ce_gppo,",
        ",openrlhf,tpo,FILE.py}",
        "--advantage_estimator",
        "--stare.variant {O1,C2}",
    ]
    for flag in [*openrlhf_parser()._option_string_actions, *ours, *(f"--{name}" for name in ALWAYS_THERE | IF_GIVEN)]:
        assert flag in text


def test_the_help_of_every_option_is_the_dataclass_s_and_ends_with_the_default(monkeypatch):
    monkeypatch.setenv("COLUMNS", "1000")  # argparse breaks lines at hyphens too
    text = " ".join(parser_with_ours().format_help().split())
    for name, field in (ALWAYS_THERE | IF_GIVEN).items():
        # The default may be another one for a method, or under a schedule, which follows.
        end = "" if name.startswith(("entropy.", "stare.")) else ")"
        assert f"{field.metadata['help']} (default: {field.default}{end}" in text
    assert "(default: gate; open for ce_gppo, clip_cov, clip_higher, high_entropy, kl_cov, repo; adaptive for" in text
    assert "(default: 1.5; 60.0 under pi)" in text


def test_without_our_flags_the_loss_is_stare_with_the_defaults_of_the_dataclass():
    args = parse()
    assert args.policy_loss == "stare"
    assert not hasattr(args, "stare") and not hasattr(args, "entropy")
    assert vars(args.tpo) == TPO_DEFAULTS


def test_every_option_has_a_type_that_a_flag_can_convert_to():
    # type=bool would turn "False" into True.
    assert {type(default) for default in DEFAULTS.values()} <= {str, int, float}


@pytest.mark.parametrize("field", FIELDS, ids=lambda field: field.name)
def test_every_option_arrives_as_typed(field):
    word = (field.metadata["choices"] or ("3" if isinstance(field.default, int) else "0.25",))[-1]
    args = parse(f"--stare.{field.name}", word)
    assert vars(args.stare) == {field.name: type(field.default)(word)}


def test_the_config_of_a_command():
    args = parse(*"--stare.variant C2 --entropy.schedule adaptive --stare.w_max 2 --entropy.target 0.5".split())
    assert StareOptions(**given(args, "stare")) == StareOptions(variant="C2", w_max=2.0)
    assert EntropyControl(**given(args, "entropy")) == EntropyControl(schedule="adaptive", target=0.5)


@pytest.mark.parametrize(
    "words, expected",
    [
        ("", "gae"),
        ("--advantage_estimator rloo", "rloo"),
        ("--algo.advantage.estimator rloo", "rloo"),
        ("--advantage_estimator rloo --algo.advantage.estimator dr_grpo", "dr_grpo"),
        ("--algo.advantage.estimator dr_grpo --advantage_estimator rloo", "rloo"),
        ("--advantage_estimator sr_grpo", "sr_grpo"),
        ("--algo.advantage.estimator sr_grpo", "sr_grpo"),
    ],
)
def test_the_short_form_of_the_estimator_and_the_last_one_given_wins(words, expected):
    args = parse(*words.split())
    assert args.algo.advantage.estimator == expected
    assert not hasattr(args, "advantage_estimator")


# OpenRLHF's flags stay as they are


@pytest.mark.parametrize("words", [[], TYPICAL], ids=["defaults", "typical"])
def test_openrlhfs_flags_parse_to_the_same_values(words):
    without, with_ours = vars(openrlhf_parser().parse_args(words)), vars(parser_with_ours().parse_args(words))
    ours = "policy_loss rollout.min_new_tokens eval_top_p preflight dry_run wait_for_resources no_checks any_openrlhf"
    added = {*ours.split(), "look.on", "console"} | ALWAYS_THERE.keys()
    run_name = "logger.wandb.run_name"  # the minute of the day
    assert with_ours.keys() - without.keys() == added
    assert {name: with_ours[name] for name in without if name != run_name} == {
        name: value for name, value in without.items() if name != run_name
    }


def test_every_abbreviation_that_openrlhf_understands_means_the_same():
    theirs, with_ours = openrlhf_parser(), parser_with_ours()
    prefixes = {flag[:end] for flag in theirs._option_string_actions for end in range(3, len(flag))}
    clear = {prefix for prefix in prefixes if len(theirs._get_option_tuples(prefix)) == 1}
    assert len(clear) > 100
    for prefix in clear:
        (before,), (after,) = theirs._get_option_tuples(prefix), with_ours._get_option_tuples(prefix)
        assert before[1:] == after[1:]


def test_the_fewest_new_tokens_are_openrlhfs_one_unless_given():
    assert parse().rollout.min_new_tokens == 1
    assert parse("--rollout.min_new_tokens=0").rollout.min_new_tokens == 0
    assert parse("--rollout.mic", "4").rollout.micro_batch_size == 4


# What cannot be read


@pytest.mark.parametrize(
    "words, named",
    [
        ("--stare.top_p_ratio abc", ["--stare.top_p_ratio", "'abc'"]),
        ("--stare.reweight_w 1,1", ["--stare.reweight_w", "'1,1'"]),
        ("--entropy.record_tokens 2.5", ["--entropy.record_tokens", "'2.5'"]),
        ("--entropy.step", ["--entropy.step", "expected one argument"]),
        ("--stare.gamma 1", ["--stare.gamma"]),
        ("--advantage_estimator grpo", ["--advantage_estimator", "grpo", "group_norm"]),
        ("--algo.advantage.estimator grpo", ["--algo.advantage.estimator", "grpo", "group_norm"]),
        ("--ds.zero_stage three", ["--ds.zero_stage", "'three'"]),
    ],
)
def test_a_flag_that_cannot_be_read_ends_with_status_2_and_one_line(words, named, capsys):
    with pytest.raises(SystemExit) as ended:
        parse(*words.split())
    out, err = capsys.readouterr()
    assert ended.value.code == 2
    assert out == ""
    assert err.startswith("train_ray: error: ") and err.count("\n") == 1 and err.endswith("\n")
    assert all(name in err for name in named)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("--stare.varient C2", "--stare.variant"),
        ("--rollout.n_sample_per_prompt 4", "--rollout.n_samples_per_prompt"),
        ("--actor.model_name_or_pat=x --train.batchsize 3", "--train.batch_size"),
        ("--nothing.like.it 1", None),
    ],
)
def test_a_mistyped_flag_is_answered_with_the_nearest(typed, meant, capsys):
    with pytest.raises(SystemExit):
        parse(*typed.split())
    said = capsys.readouterr().err
    assert (f"did you mean {meant}" in said) if meant else ("did you mean" not in said)


def test_no_key_is_printed_with_the_arguments():
    args = parse("--logger.wandb.key", "f00")
    assert args.logger.wandb.key == "f00" and "f00" not in str(args) and "f00" not in str(vars(args))
    assert pickle.loads(pickle.dumps(args)).logger.wandb.key == "f00"
    assert "f00" not in str(command.settle(flags.parse([*TYPICAL[:-1], "--logger.wandb.key", "f00"])))


@pytest.mark.parametrize("name", ["entropy", "data", "train", "tpo", "tool"])
def test_a_method_of_ones_own_whose_name_begins_other_flags_is_refused(tmp_path, name):
    (tmp_path / f"{name}.py").write_text("")
    with pytest.raises(UsageError, match=f"--policy_loss .*/{name}.py cannot give its method the name {name}"):
        parse("--policy_loss", f"{tmp_path}/{name}.py")


@pytest.mark.parametrize(
    "words, expected",
    [("", True), ("--tpo.no_length_normalize", False), ("--tpo.no_length_normalize --tpo.length_normalize", True)],
)
def test_length_normalisation_is_on_unless_turned_off_and_the_last_flag_wins(words, expected):
    assert TpoConfig(**vars(parse(*words.split()).tpo)) == TpoConfig(length_normalize=expected)
