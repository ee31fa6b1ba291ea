"""The small server: the model's own tokens whatever the memory, the simulation's counts, and the cap kept."""

import json
import random

import pytest
import torch

import kvcourse as kv
from kvcourse import memory, results
from kvcourse.bench import concurrency, deployments, traces
from kvcourse.bench.deployments import Deployment
from kvcourse.bench.serving import ArrayRoom, BlockRoom, Job, Served, Server, serve
from kvcourse.bench.traces import Request
from kvcourse.errors import InputError, PoolExhausted


def tiny(**config):
    return kv.tiny_model(dtype=torch.float64, max_position_embeddings=96, vocab_size=64, **config)


def draw(seed, number=9, longest_input=14, longest_output=34):
    chance = random.Random(seed)
    requests = [
        Request(0.0, chance.randint(1, longest_input), chance.randint(1, longest_output))
        for _ in range(number)
    ]
    return requests, [[chance.randrange(64) for _ in range(request.input_length)] for request in requests]


def alone(model, prompt, length):
    """What the model says when a request has it to itself."""
    return tuple(kv.generate(model, torch.tensor([prompt]), length, eos_token_id=())[0].tolist())


def report_of(model, seed, rows=2, max_length=48, block_size=4):
    requests, prompts = draw(seed)
    return concurrency.run(
        model, requests, rows, max_length, block_size, prompts=prompts, deployments=False, progress=False
    )


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    "config",
    [{}, {"sliding_window": 6, "model_type": "mistral"}, {"kv_lora_rank": 8, "qk_rope_head_dim": 8}],
    ids=["heads", "window", "latents"],
)
def test_both_arms_say_what_the_model_says_alone(config, seed):
    model = tiny(**config)
    requests, prompts = draw(seed)
    lengths = [request.output_length for request in requests]
    rooms = {"static": ArrayRoom(model, 2, 48), "paged": BlockRoom(model, 1 + 16, 4)}
    jobs = {name: [Job(*job) for job in zip(prompts, lengths, strict=True)] for name in rooms}
    served = serve({name: Server(model, room, jobs[name]) for name, room in rooms.items()}, progress=False)
    expected = tuple(alone(model, prompt, length) for prompt, length in zip(prompts, lengths, strict=True))
    assert served["static"].outputs == served["paged"].outputs == expected
    rooms["paged"].memory.check()
    assert all(pool.num_free == pool.num_blocks - 1 for pool in rooms["paged"].memory.pools)


@pytest.mark.parametrize("block_size", [1, 3, 4, 16])
@pytest.mark.parametrize("seed", range(3))
def test_the_simulation_counts_the_same_steps_and_preemptions(seed, block_size):
    report = report_of(tiny(num_layers=1), seed, block_size=block_size)
    for name, served in report.arms.items():
        assert report.simulated[name] == (served.steps, served.preemptions)
        assert sum(served.running) == sum(len(output) for output in served.outputs)
        assert served.nbytes <= report.cap_bytes
    static, paged = (report.arms[name] for name in concurrency.ARMS)
    assert report.identical == report.requests == len(static.outputs)
    assert max(static.running) == 2
    assert static.preemptions == static.recomputed == 0
    assert static.nbytes == report.cap_bytes
    assert paged.steps <= static.steps


def test_requests_that_were_preempted_lose_no_token_and_get_none_twice():
    """vLLM's issue 16832, with a pool that is full again and again."""
    model = tiny()
    requests, prompts = [Request(0.0, 6, 30)] * 5, [[3 * i + j for j in range(6)] for i in range(5)]
    room = BlockRoom(model, 1 + 10, 4, watermark=0.0)
    jobs = [Job(prompt, request.output_length) for prompt, request in zip(prompts, requests, strict=True)]
    served = serve({"paged": Server(model, room, jobs)}, progress=False)["paged"]
    assert served.preemptions >= 4
    assert served.recomputed >= 6 * served.preemptions
    assert served.outputs == tuple(alone(model, prompt, 30) for prompt in prompts)
    assert all(len(output) == 30 for output in served.outputs)
    room.memory.check()
    assert all(pool.num_free == pool.num_blocks - 1 for pool in room.memory.pools)


def test_the_first_admitted_is_never_preempted():
    model = tiny(num_layers=1)
    jobs = [Job([1, 2, 3], 20), Job([4, 5, 6], 20), Job([7], 20)]
    server = Server(model, BlockRoom(model, 1 + 6, 4, watermark=0.0), jobs)
    while len(jobs[0].tokens) < jobs[0].length:
        before = len(jobs[0].tokens)
        server.step()
        assert len(jobs[0].tokens) == before + 1
    assert server.preemptions


def test_a_request_that_never_fits_is_an_error_and_no_endless_loop():
    model = tiny(num_layers=1)
    for prompt, length in (([1] * 30, 2), ([1] * 10, 20)):
        server = Server(model, BlockRoom(model, 1 + 4, 4), [Job(prompt, length)])
        with pytest.raises(PoolExhausted, match="does not fit into the memory: give it more blocks"):
            serve({"": server}, progress=False)


@pytest.mark.parametrize("fails", ["model", "cat"])
@pytest.mark.parametrize("error", [PoolExhausted, KeyboardInterrupt])
def test_a_request_whose_start_fails_waits_on(monkeypatch, fails, error):
    """No request is lost, no token is lost or counted twice, and those that run stop at their lengths."""
    model = tiny(num_layers=1)
    jobs = [Job([1, 2, 3], 2), Job([4, 5], 6), Job([6, 7, 8], 2), Job([9], 3)]
    room = BlockRoom(model, 1 + 20, 4)
    server = Server(model, room, jobs)
    monkeypatch.setattr(room, "admits", lambda running, tokens: running < 2)
    server.step()
    assert (server.running, list(server.waiting)) == (jobs[:2], jobs[2:])
    # One more is admitted from now on: the third request begins next to two that get a token in the same step.
    monkeypatch.setattr(room, "admits", lambda running, tokens: running < 3)

    def fail(*arguments, **options):
        raise error

    with monkeypatch.context() as patch:
        if fails == "cat":
            patch.setattr(kv.KVCache, "cat", fail)
        else:
            forward = type(model).__call__
            prompt = torch.tensor([jobs[2].prompt])
            patch.setattr(
                type(model),
                "__call__",
                lambda self, ids, *rest, **options: (
                    fail() if torch.equal(ids, prompt) else forward(self, ids, *rest, **options)
                ),
            )
        with pytest.raises(error):
            server.step()
    assert not server.is_done
    assert (server.running, list(server.waiting)) == ([jobs[1]], jobs[2:])
    assert [len(job.tokens) for job in jobs] == [2, 2, 0, 0]
    served = serve({"": server}, progress=False)[""]
    assert served.outputs == tuple(alone(model, job.prompt, job.length) for job in jobs)
    assert sum(served.running) == sum(job.length for job in jobs)
    room.memory.check()
    assert all(pool.num_free == pool.num_blocks - 1 for pool in room.memory.pools)


def test_a_server_without_work_does_nothing():
    """vLLM's issue 11562, an assertion in a step without tokens."""
    model = tiny(num_layers=1)
    idle = Server(model, BlockRoom(model, 10, 4), [])
    idle.step()
    assert idle.is_done
    assert (idle.served().steps, idle.served().concurrency, idle.served().outputs) == (0, 0, ())
    done = Server(model, BlockRoom(model, 10, 4), [Job([1, 2], 3)])
    served = serve({"": done}, progress=False)[""]
    done.step()
    assert done.served() == served


def test_servers_take_turns():
    model = tiny(num_layers=1)
    jobs = [[Job([1, 2], 12) for _ in range(4)] for _ in range(2)]
    servers = {
        "few": Server(model, ArrayRoom(model, 1, 16), jobs[0]),
        "many": Server(model, ArrayRoom(model, 4, 16), jobs[1]),
    }
    order = []
    for name, server in servers.items():
        server.step = lambda step=server.step, name=name: (order.append(name), step())
    served = serve(servers, progress=False)
    assert (served["few"].steps, served["many"].steps) == (48, 12)
    # Four steps of the one go with each step of the other.
    assert order[:20].count("few") in (15, 16, 17)
    assert order[-1] in servers


def test_at_once_is_counted_while_somebody_waits():
    served = Served((3, 3, 2, 1), (2, 1, 0, 0), 0, 0, 0, 1.0, ())
    assert (served.steps, served.concurrency) == (4, 3.0)
    assert Served((3, 2, 1), (0, 0, 0), 0, 0, 0, 1.0, ()).concurrency == 2.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rows": 0}, "rows=0"),
        ({"block_size": 0}, "block_size=0"),
        ({"max_length": 97}, "max_length=97"),
        ({"max_length": 20}, "a request of 24 tokens: max_length=20 allows fewer"),
        ({"requests": []}, "no requests"),
        ({"prompts": [[1, 2]]}, r"prompts of \[2\] tokens: expected those of the requests, \[4\]"),
        ({"rows": 1, "max_length": 40, "block_size": 16}, "request 0 stores 23 tokens and does not fit"),
        ({"block_size": 65}, "block_size=65: memory for 4 × 32 tokens holds 1 such blocks"),
        ({"prompts": None}, "no tokenizer"),
    ],
)
def test_what_cannot_be_run(options, message):
    requests = [Request(0.0, 4, 20)]
    with pytest.raises(InputError, match=message):
        concurrency.run(
            tiny(num_layers=1), **{"requests": requests, "prompts": [[1] * 4], "max_length": 32} | options
        )


def test_a_model_with_windows_is_refused():
    with pytest.raises(InputError, match="sliding windows"):
        concurrency.run(tiny(sliding_window=6, model_type="mistral"))


def test_lengths_are_those_of_sharegpt_divided():
    whole = traces.draw("sharegpt", 50, seed=1)
    short = concurrency.lengths(50)
    assert len(concurrency.lengths()) == 32
    for long, request in zip(whole, short, strict=True):
        assert request.input_length == max(1, round(long.input_length / 8))
        assert request.output_length == max(1, round(long.output_length / 8))
    tight = concurrency.lengths(200, max_length=40)
    assert max(request.input_length + request.output_length for request in tight) == 40
    assert min(request.output_length for request in tight) >= 1


def test_a_report_is_printed_and_stored():
    arms = {
        "static": Served((2, 2, 1), (1, 1, 0), 0, 0, 4096, 3.0, ((1, 2), (3,))),
        "paged": Served((4, 1), (1, 0), 7, 19, 2048, 1.5, ((1, 2), (4,))),
    }
    simulated = {"static": (3, 0), "paged": (2, 7)}
    row = Deployment("llama-3-8b", 24 * 10**9, 5 << 30, "oracle", 1 << 30, 5)
    report = concurrency.Report("tiny", arms, simulated, 4096, 64, 4, 5.0, 7.0, (row,))
    assert (report.identical, report.requests, report.speedup) == (1, 2, 2.0)
    data = json.loads(report.to_json())
    assert {"machine", "versions", "commit", "command", "date"} <= set(data)
    assert (data["benchmark"], data["speedup"], data["identical"]) == ("concurrency", 2.0, 1)
    assert data["arms"]["paged"]["running"] == [4, 1]
    assert data["arms"]["paged"]["simulated_preemptions"] == 7
    assert data["deployments"][0]["bytes_of_32"] == 32 << 30
    text = str(report)
    for printed in ("1 of 2 requests", "2.00×", "4.0 KiB", "llama-3-8b", "24 GB", "32.0 GiB", "5.0 GiB"):
        assert printed in text


def test_deployments_by_hand():
    """Llama-3-8B: 131,072 bytes a token, so 8,192 tokens are a GiB; 24 GB less 10 % and 16.06 GB of weights."""
    requests = traces.draw("fixed", 40)
    rows = {row.policy: row for row in deployments.deploy(requests, [("llama-3-8b", "24GB", 8192)])}
    longest = rows["max length"]
    assert longest.request_bytes == 8192 * 131_072 == 1 << 30
    assert longest.room_bytes == 24 * 10**9 * 9 // 10 - memory.weight_size("llama-3-8b")
    assert longest.at_once == longest.room_bytes >> 30
    assert longest.bytes_of(32) == 32 << 30
    # 512 tokens in, 512 out: 64 arrays of 1,023 slots or 1,024 fill 65,536.
    assert rows["oracle"].request_bytes == pytest.approx(65_536 / 40 * 131_072, rel=1e-9)
    assert rows["paged, 16"].request_bytes <= rows["oracle"].request_bytes


def test_the_stored_run_is_consistent():
    run = results.read("concurrency")
    assert run["identical"] == run["requests"] == 32
    static, paged = run["arms"]["static"], run["arms"]["paged"]
    requests = concurrency.lengths()
    for arm in (static, paged):
        assert sum(arm["running"]) == sum(request.output_length for request in requests)
        assert (arm["simulated_steps"], arm["simulated_preemptions"]) == (arm["steps"], arm["preemptions"])
        assert len(arm["running"]) == arm["steps"]
        assert arm["nbytes"] <= run["cap_bytes"]
    assert paged["preemptions"] > 1
    assert paged["most_at_once"] > 4 == static["most_at_once"] == static["concurrency"]
    assert run["speedup"] == pytest.approx(static["seconds"] / paged["seconds"])
    found = {(row["model"], row["gpu_bytes"], row["policy"]): row["at_once"] for row in run["deployments"]}
    for row in deployments.deploy(traces.draw("sharegpt", concurrency.LARGE_RUN)):
        assert found[row.model, row.gpu_bytes, row.policy] == row.at_once
