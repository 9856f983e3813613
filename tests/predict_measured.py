"""What torch's profiler counts on real tensors, for comparison with a prediction."""

from runner import steps
from runner.checkpoint import Checkpoint
from runner.settings import Settings


def measure(checkpoint: Checkpoint, settings: Settings) -> int:
    """Return the peak of bytes allocated by the workload on the CPU, parameters and buffers counted in.

    Python's cyclic collector is off meanwhile: when it runs is chance, and where a model keeps cycles alive (Mamba's
    checkpointed layers do) it may lower the peak by a few percent.
    """
    import gc

    import torch
    from torch.profiler import ProfilerActivity, profile

    torch.manual_seed(settings.seed)
    model = steps.build(checkpoint, settings)
    steps.prepare(model, settings)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape) * 0.02)
        for buffer in model.buffers():
            if buffer.is_floating_point():
                buffer.nan_to_num_(0.0, 0.0, 0.0)
    held = {
        tensor.untyped_storage()._cdata: tensor.untyped_storage().nbytes()
        for tensor in (*model.parameters(), *model.buffers())
    }
    gc.collect()
    gc.disable()
    try:
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
            _work(model, settings)
    finally:
        gc.enable()
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    running = highest = sum(held.values())
    for event in sorted(events, key=lambda event: event.start_ns()):
        running += event.nbytes()
        highest = max(highest, running)
    return highest


def _work(model: object, settings: Settings) -> None:
    if settings.workload == "train":
        optimizer, scaler = steps.make_optimizer(model, settings), steps.make_scaler(settings)
        for step in range(settings.steps):
            batches = [
                steps.make_inputs(model, settings, step=step * settings.grad_accum_steps + index)
                for index in range(settings.grad_accum_steps)
            ]
            steps.train_step(model, batches, optimizer, scaler, settings)
        return
    inputs = steps.make_inputs(model, settings)
    if settings.workload == "generate":
        tokens = steps.generate(model, inputs, settings)
        prompt = 1 if model.config.is_encoder_decoder else settings.sequence_length
        if tokens.shape[1] != prompt + settings.max_new_tokens:
            raise AssertionError(f"generate ended early: {tokens.shape[1] - prompt} tokens")
        return
    steps.forward(model, inputs, settings)
