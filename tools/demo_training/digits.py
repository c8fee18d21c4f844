"""The model and data of the demo: a small CNN, and scikit-learn's handwritten digits, which need no
download. All random numbers have fixed seeds, so that every process computes the same values."""

import sklearn.datasets
import torch

TRAIN_IMAGES = 1536  # the other images, 261 of 1797, are the test set
GLOBAL_BATCH = 64


def load():
    """Returns ((images, labels) to train on, (images, labels) to test with). Images have the shape
    [n, 1, 8, 8]."""
    digits = sklearn.datasets.load_digits()
    images = torch.from_numpy(digits.images).float().div(16).unsqueeze(1)
    images = (images - images.mean()) / images.std()
    labels = torch.from_numpy(digits.target).long()
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    first, last = order[:TRAIN_IMAGES], order[TRAIN_IMAGES:]
    return (images[first], labels[first]), (images[last], labels[last])


def make_model():
    """Returns a model of about 280,000 weights, the same in every process. All its functions are
    smooth, so that rounding errors do not grow much."""
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 32, 3), torch.nn.Tanh(), torch.nn.Conv2d(32, 32, 3), torch.nn.Tanh(),
        torch.nn.Flatten(), torch.nn.Linear(32 * 4 * 4, 512), torch.nn.Tanh(),
        torch.nn.Linear(512, 10))


def batches(data, epoch, world_size):
    """Yields the global batches of one epoch, each as a list of `world_size` equal shares."""
    images, labels = data
    share = GLOBAL_BATCH // world_size
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(1 + epoch))
    for start in range(0, len(order) - share * world_size + 1, share * world_size):
        shares = order[start:start + share * world_size].split(share)
        yield [(images[indices], labels[indices]) for indices in shares]


def loss_of(model, share):
    images, labels = share
    return torch.nn.functional.cross_entropy(model(images), labels)


def accuracy(model, data):
    """Returns the accuracy, in [0, 1]. Leaves the model in training mode."""
    images, labels = data
    model.eval()
    with torch.no_grad():
        right = (model(images).argmax(1) == labels).float().mean().item()
    model.train()
    return right


def weights_of(model):
    """Returns copies of the weights, by name. All ranks of a sharded model must call it."""
    return {name: whole(tensor).numpy().copy() for name, tensor in model.state_dict().items()}


def whole(tensor):
    """Returns the whole of a tensor that may be sharded."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
