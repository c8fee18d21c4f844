"""Scripts for torchrun, as users of Lightning and Accelerate write them. Arguments: the framework,
what averages the gradients ("group": the process group pbox; "hook": DDPCommHook over gloo;
"gloo"), and the file for rank 0's weights."""

import os
import sys

import torch

import pbox.torch  # makes the backend known

STEPS = 4
BATCH = 8


def model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))


def data():
    """Returns the inputs and targets of all ranks."""
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(STEPS * BATCH, 8, generator=generator)
    return torch.utils.data.TensorDataset(inputs, inputs.sum(1, keepdim=True))


def with_lightning(how):
    import lightning
    from lightning.pytorch.strategies import DDPStrategy

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = model()

        def training_step(self, batch, _):
            inputs, targets = batch
            return torch.nn.functional.mse_loss(self.model(inputs), targets)

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    class Attach(lightning.Callback):
        def on_train_start(self, trainer, _):
            self.hook = pbox.torch.attach(trainer.strategy.model)

        def on_train_end(self, *_):
            self.hook.close()

    strategy = DDPStrategy(process_group_backend="pbox" if how == "group" else "gloo")
    module = Module()
    trainer = lightning.Trainer(
        accelerator="cpu", devices=2, strategy=strategy, max_epochs=1, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        callbacks=[Attach()] if how == "hook" else [])
    trainer.fit(module, torch.utils.data.DataLoader(data(), batch_size=BATCH // 2))
    return module.model


def with_accelerate(how):
    import accelerate
    # Accelerate uses a group that exists already.
    torch.distributed.init_process_group("pbox" if how == "group" else "gloo")
    accelerator = accelerate.Accelerator(cpu=True)
    ours = model()
    optimizer = torch.optim.SGD(ours.parameters(), lr=0.1)
    loader = torch.utils.data.DataLoader(data(), batch_size=BATCH // 2)
    parallel, optimizer, loader = accelerator.prepare(ours, optimizer, loader)
    hook = pbox.torch.attach(parallel) if how == "hook" else None
    for inputs, targets in loader:
        optimizer.zero_grad()
        accelerator.backward(torch.nn.functional.mse_loss(parallel(inputs), targets))
        optimizer.step()
    if hook is not None:
        hook.close()
    return ours


def main(framework, how, path):
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    trained = {"lightning": with_lightning, "accelerate": with_accelerate}[framework](how)
    if os.environ["RANK"] == "0":
        torch.save(trained.state_dict(), path)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
