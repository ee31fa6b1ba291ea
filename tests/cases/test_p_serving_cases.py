"""Faults that people reported of schedulers that preempt, as tests of our small server (P16, P17, P19, P20, P38)."""

# ruff: noqa: N802 (tests carry the name of their case)

import pytest
import torch
from doubles import same, tiny
from tiny_models import tokens

import kvcourse as kv
from kvcourse.bench.allocators import BlockMemory
from kvcourse.bench.batching import serve as simulate
from kvcourse.bench.serving import BlockRoom, Job, Server
from kvcourse.bench.traces import Request
from kvcourse.errors import PoolExhausted

B = 4


def alone(model, prompt, length):
    """What the model says without any other request."""
    return kv.generate(model, torch.tensor([prompt]), length, eos_token_id=())[0].tolist()


def prompts(number, length=6):
    return tokens(number, length).tolist()


def watched(model):
    """(what the model is called with, a handle to stop): the token ids of each forward pass."""
    calls = []
    hook = model.register_forward_pre_hook(lambda _, args, kwargs: calls.append(args[0]), with_kwargs=True)
    return calls, hook


def run(server, most):
    """Serve to the end, in at most so many steps; yields after each."""
    for _ in range(most):
        if server.is_done:
            return
        server.step()
        yield
    assert server.is_done, f"not done after {most} steps"


class TestP16:
    """GeeeekExplorer/nano-vllm#211: a preempted request came back to its own blocks, and its budget ignored them."""

    @pytest.mark.parametrize("token_granular", [False, True], ids=["blocks", "tokens"])
    @pytest.mark.parametrize("generated", [1, 2, 3, 7])
    def test_P16_what_is_computed_again_is_the_text_without_its_hit(self, generated, token_granular):
        model, (prompt,) = tiny(), prompts(1)
        plan = kv.Plan(storage="paged", block_size=B)
        memory = kv.storage.PagedMemory(model.config, 32, B, torch.float64, token_granular=token_granular)
        expected = alone(model, prompt, 16)
        text, cache = list(prompt), kv.KVCache(model.config, plan, memory=memory)
        while len(text) < len(prompt) + generated:
            logits = model(torch.tensor([text[cache.seen[0] :]]), cache=cache)
            text.append(int(logits[0, -1].argmax()))
        cache.publish([text[:-1]])  # the last token has no key yet
        cache.reset()  # preempted; the blocks stay findable

        again = kv.KVCache(model.config, plan, memory=memory)
        (hit,) = again.reuse([text])
        assert hit == (len(text) - 1) // B * B
        calls, hook = watched(model)
        logits = model(torch.tensor([text[hit:]]), cache=again)
        hook.remove()
        assert [call.shape[1] for call in calls] == [len(text) - hit]
        assert again.seen == (len(text),)
        assert same(logits, model(torch.tensor([text]))[:, hit:])
        while len(text) < len(prompt) + 16:
            text.append(int(logits[0, -1].argmax()))
            logits = model(torch.tensor([text[-1:]]), cache=again)
        assert text[len(prompt) :] == expected


class TestP17:
    """vllm-project/vllm#16832: what a preempted request says was incomplete."""

    @pytest.mark.parametrize(
        ("num_blocks", "kind"),
        [(9, {}), (12, {}), (7, {"sliding_window": 6}), (9, {"num_heads": 3, "kv_lora_rank": 10})],
        ids=["heads", "heads, more room", "window", "latents"],
    )
    def test_P17_a_small_pool_says_what_a_large_one_says(self, num_blocks, kind):
        model = tiny(**kind)
        lengths, outputs, preemptions = (20, 17, 20, 3, 25), {}, {}
        for blocks in (num_blocks, 200):
            jobs = [Job(prompt, length) for prompt, length in zip(prompts(5), lengths, strict=True)]
            room = BlockRoom(model, 1 + blocks, B, watermark=0.0)
            server = Server(model, room, jobs)
            for _ in run(server, 400):
                room.memory.check()
            outputs[blocks], preemptions[blocks] = server.served().outputs, server.served().preemptions
            assert all(pool.num_free == pool.num_blocks - 1 for pool in room.memory.pools)
        assert preemptions[num_blocks] >= 2 > preemptions[200] == 0
        assert outputs[num_blocks] == outputs[200]
        assert [len(output) for output in outputs[num_blocks]] == list(lengths)


class TestP19:
    """vllm-project/vllm-gaudi#524; vllm-project/vllm-ascend#11334: a request that came back was taken for one that
    decodes as soon as its *original* prompt was done, and tokens were appended twice."""

    def test_P19_a_resumed_text_is_prefilled_whole(self):
        """Three tokens of prompt and 1,024 of output: one pass over all 1,027, and no token more or fewer."""
        model, prompt = tiny(num_layers=1), [5, 6, 7]
        output = tokens(1, 1024)[0].tolist()
        job = Job(prompt, 1028, list(output))
        server = Server(model, BlockRoom(model, 400, B), [job])
        calls, hook = watched(model)
        for _ in run(server, 4):
            pass
        hook.remove()
        assert [tuple(call.shape) for call in calls] == [(1, 1027), (1, 1), (1, 1), (1, 1)]
        assert job.tokens == output + alone(model, prompt + output, 4)

    def test_P19_in_chunks(self):
        model, text = tiny(), torch.cat([tokens(1, 3), tokens(1, 1024, seed=1)], 1)
        cache = kv.KVCache(model.config, kv.Plan(storage="paged", block_size=16))
        chunks = text.split(128, 1)
        assert len(chunks) == 9
        for chunk in chunks:
            last = model(chunk, cache=cache, last_only=True)
        assert cache.seen == (1027,)
        assert same(last, model(text, last_only=True))


class TestP20:
    """vllm-project/vllm#25538: the same request was resumed and preempted in every step, and nobody got anywhere."""

    @pytest.mark.parametrize("num_blocks", [6, 7, 10])
    @pytest.mark.parametrize("watermark", [0.0, 0.3])
    def test_P20_everybody_gets_on(self, num_blocks, watermark):
        """Each step gives the first in line a token, and each return at least one: so the steps are bounded."""
        model = tiny(num_layers=1)
        jobs = [Job(prompt, 16) for prompt in prompts(5)]
        server = Server(model, BlockRoom(model, 1 + num_blocks, B, watermark=watermark), jobs)
        before = [0] * 5
        for _ in run(server, 5 * 16):
            after = [len(job.tokens) for job in jobs]
            first = next(i for i in range(5) if before[i] < 16)
            assert after[first] == before[first] + 1
            assert all(new - old in (0, 1) for new, old in zip(after, before, strict=True))
            before = after
        assert before == [16] * 5
        served = server.served()
        assert served.preemptions <= 5 * 16
        assert [list(output) for output in served.outputs] == [
            alone(model, prompt, 16) for prompt in prompts(5)
        ]

    @pytest.mark.parametrize("num_blocks", [6, 7, 10])
    @pytest.mark.parametrize("options", [{"watermark": 0.0}, {"watermark": 0.3}, {"whole": True}])
    def test_P20_the_simulation_comes_to_its_end_too(self, num_blocks, options):
        requests = [Request(0.0, 6, 16)] * 20
        service = simulate(requests, BlockMemory(num_blocks * B, B, **options))
        assert sorted(service.finished) == list(range(20))
        assert service.generated == 20 * 16
        assert service.total.steps <= 20 * 16
        assert service.preemptions <= 20 * 16
        assert service.preemptions == 0 or not options.get("whole")


class TestP38:
    """vllm-project/vllm#11562: the engine fell over an assertion when there was nothing to run in a step."""

    def test_P38_nothing_to_do_is_nothing_done(self):
        model = tiny(num_layers=1)
        server = Server(model, BlockRoom(model, 10, B), [])
        calls, hook = watched(model)
        for _ in range(2):
            assert server.is_done
            server.step()
        hook.remove()
        assert calls == []
        assert server.served().outputs == ()

    def test_P38_who_waits_for_memory_goes_on_waiting(self):
        """Another cache holds the memory: a clear error, everybody still in line, and all is well once it is gone."""
        model = tiny(num_layers=1)
        room = BlockRoom(model, 1 + 8, B)
        other = kv.KVCache(model.config, kv.Plan(storage="paged", block_size=B), memory=room.memory)
        model(tokens(1, 30), cache=other)
        jobs = [Job(prompt, 9) for prompt in prompts(3)]
        server = Server(model, room, jobs)
        for _ in range(3):
            with pytest.raises(PoolExhausted):
                server.step()
            assert not server.is_done
            assert [job.tokens for job in jobs] == [[], [], []]
            room.memory.check()
        other.reset()
        for _ in run(server, 60):
            room.memory.check()
        assert [job.tokens for job in jobs] == [alone(model, prompt, 9) for prompt in prompts(3)]
