"""Two problems with real data to train under a consistency model. Each is an object with

    arrays()            returns the initial weights, float32 arrays that are equal in every process
    names               the names of these arrays
    gradient(weights, batch_index)   returns a list of arrays, from this rank's share of the data
    accuracy(weights)   returns the accuracy on the test data, which no rank trains on, in [0, 1]

Its constructor takes (rank, world_size, folder). Before that, one process calls prepare(folder).
All random choices have fixed seeds.
"""

import gzip
import pathlib
import re
import zlib

import numpy

DICTIONARIES = {"american-english": "wamerican", "ngerman": "wngerman", "french": "wfrench",
                "spanish": "wspanish", "italian": "witalian", "dutch": "wdutch"}


class Words:
    """Finds the language of a word, out of six: softmax regression on hashed letter n-grams. The
    words are from Debian's dictionaries for spell checkers. 98,304 weights."""

    NGRAMS = (1, 2, 3, 4)
    FEATURES = 1 << 14
    PER_LANGUAGE = 30_000
    TEST_SHARE = 10  # one word in ten
    BATCH = 128  # per rank
    LEARNING_RATE = 32.0

    names = ["weight"]

    @classmethod
    def prepare(cls, folder):
        """Stores the hashed n-grams of all words, once for all ranks."""
        words, labels = cls.shuffled()
        columns, starts = [], [0]
        for word in words:
            hashed = {zlib.crc32(piece.encode()) % cls.FEATURES for piece in cls._pieces(word)}
            columns.extend(sorted(hashed))
            starts.append(len(columns))
        numpy.savez(pathlib.Path(folder, "words.npz"), columns=numpy.array(columns, numpy.int32),
                    starts=numpy.array(starts, numpy.int32), labels=labels)

    def __init__(self, rank, world_size, folder):
        import scipy.sparse

        with numpy.load(pathlib.Path(folder, "words.npz")) as stored:
            columns, starts, labels = stored["columns"], stored["starts"], stored["labels"]
        lengths = numpy.diff(starts)
        values = numpy.repeat(1 / numpy.sqrt(lengths), lengths).astype(numpy.float32)
        matrix = scipy.sparse.csr_matrix((values, columns, starts),
                                         shape=(len(labels), self.FEATURES))
        tested = numpy.arange(len(labels)) % self.TEST_SHARE == 0
        self._test = matrix[tested], labels[tested]
        mine = numpy.flatnonzero(~tested)[rank::world_size]
        self._train = matrix[mine], labels[mine]
        self._random = numpy.random.default_rng(1000 + rank)

    @classmethod
    def shuffled(cls):
        """Returns (words, indices of their languages), shuffled."""
        random = numpy.random.default_rng(0)
        words, labels = [], []
        for label, (name, package) in enumerate(DICTIONARIES.items()):
            path = pathlib.Path("/usr/share/dict", name)
            if not path.exists():
                raise FileNotFoundError(f"{path} is missing: apt-get install {package}")
            data = path.read_bytes()
            text = (gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data).decode(
                "utf-8", "replace")
            # Words with capitals are left out: names and abbreviations say little about a language.
            of_language = sorted({line for line in text.split("\n")
                                  if re.fullmatch(r"[^\W\d_A-Z]{3,}", line)})
            chosen = random.choice(len(of_language), min(cls.PER_LANGUAGE, len(of_language)),
                                   replace=False)
            words.extend(of_language[index] for index in chosen)
            labels.extend([label] * len(chosen))
        order = random.permutation(len(words))
        return [words[index] for index in order], numpy.array(labels)[order]

    @classmethod
    def _pieces(cls, word):
        marked = f"^{word}$"
        for length in cls.NGRAMS:
            for start in range(len(marked) - length + 1):
                yield marked[start:start + length]

    def arrays(self):
        return [numpy.zeros((self.FEATURES, len(DICTIONARIES)), numpy.float32)]

    def gradient(self, weights, _):
        data, labels = self._train
        rows = self._random.integers(0, len(labels), self.BATCH)
        batch, truth = data[rows], labels[rows]
        scores = batch @ weights[0]
        scores -= scores.max(axis=1, keepdims=True)
        shares = numpy.exp(scores)
        shares /= shares.sum(axis=1, keepdims=True)
        shares[numpy.arange(len(rows)), truth] -= 1
        return [numpy.asarray(batch.T @ (shares / len(rows)), numpy.float32)]

    def accuracy(self, weights):
        data, labels = self._test
        return float(((data @ weights[0]).argmax(axis=1) == labels).mean())


class Digits:
    """The demo's CNN on scikit-learn's handwritten digits. About 280,000 weights."""

    BATCH = 16  # per rank
    LEARNING_RATE = 0.1

    @classmethod
    def prepare(cls, folder):
        """Does nothing, because scikit-learn includes the data."""

    def __init__(self, rank, world_size, _):
        import sys

        import torch
        sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "tools" / "demo_training"))
        import digits

        torch.set_num_threads(1)
        self._torch, self._digits = torch, digits
        (images, labels), self._test = digits.load()
        self._train = images[rank::world_size], labels[rank::world_size]
        self._model = digits.make_model()
        self.names = [name for name, _ in self._model.named_parameters()]
        self._random = numpy.random.default_rng(1000 + rank)

    def arrays(self):
        return [parameter.detach().numpy().copy() for parameter in self._model.parameters()]

    def _load(self, weights):
        with self._torch.no_grad():
            for parameter, array in zip(self._model.parameters(), weights):
                parameter.copy_(self._torch.from_numpy(array))

    def gradient(self, weights, _):
        self._load(weights)
        images, labels = self._train
        rows = self._random.integers(0, len(labels), self.BATCH)
        self._model.zero_grad()
        self._digits.loss_of(self._model, (images[rows], labels[rows])).backward()
        return [parameter.grad.numpy() for parameter in self._model.parameters()]

    def accuracy(self, weights):
        self._load(weights)
        return self._digits.accuracy(self._model, self._test)


PROBLEMS = {"words": Words, "digits": Digits}
