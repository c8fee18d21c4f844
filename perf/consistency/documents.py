"""Two problems of the papers on SSP and ESSP, on documents: matrix factorization and latent
Dirichlet allocation. Both have the interface that problems.py describes; `accuracy` is explained
below.

A document is a bag of letter trigrams of words of one language, from the dictionaries of Words. The
problems are not told the languages.
"""

import pathlib
import zlib

import numpy
import problems

FEATURES = 2048  # hashed trigrams
WORDS_PER_DOCUMENT = 30
TEST_SHARE = 10  # one document in ten


def prepare_documents(folder):
    """Stores all documents, once for all ranks: a matrix of counts, documents by trigrams."""
    words, labels = problems.Words.shuffled()
    documents = []
    for label in range(max(labels) + 1):
        of_language = [word for word, its in zip(words, labels) if its == label]
        for first in range(0, len(of_language) - WORDS_PER_DOCUMENT + 1, WORDS_PER_DOCUMENT):
            counts = numpy.zeros(FEATURES, numpy.uint8)
            for word in of_language[first:first + WORDS_PER_DOCUMENT]:
                marked = f"^{word}$"
                for start in range(len(marked) - 2):
                    counts[zlib.crc32(marked[start:start + 3].encode()) % FEATURES] += 1
            documents.append(counts)
    order = numpy.random.default_rng(1).permutation(len(documents))
    numpy.save(pathlib.Path(folder, "documents.npy"), numpy.array(documents)[order])


def load_documents(rank, world_size, folder):
    """Returns this rank's documents and those of the test."""
    documents = numpy.load(pathlib.Path(folder, "documents.npy"))
    tested = numpy.arange(len(documents)) % TEST_SHARE == 0
    return documents[~tested][rank::world_size], documents[tested]


class Factors:
    """Factorizes the matrix log(1 + count) of documents by trigrams, less its mean: each document
    has a factor of its own, which its rank keeps, and the trigrams' factors are the weights. Both
    are stepped by the gradient of the squared error. 32,768 weights.

    The accuracy is the share of the variance that is explained in one half of each test document,
    with the factor that fits its other half best."""

    RANK = 16
    BATCH = 64  # documents per rank
    LEARNING_RATE = 0.3
    OWN_LEARNING_RATE = 0.004
    RIDGE = 2.0

    names = ["factors"]
    prepare = staticmethod(prepare_documents)

    def __init__(self, rank, world_size, folder):
        own, tested = (numpy.log1p(documents.astype(numpy.float32))
                       for documents in load_documents(rank, world_size, folder))
        mean = own.mean(axis=0)
        self._own, self._test = own - mean, tested - mean
        self._random = numpy.random.default_rng(1000 + rank)
        self._documents = 0.3 * self._random.standard_normal(
            (len(own), self.RANK)).astype(numpy.float32)

    def arrays(self):
        return [0.3 * numpy.random.default_rng(2).standard_normal(
            (FEATURES, self.RANK)).astype(numpy.float32)]

    def gradient(self, weights, _):
        rows = self._random.integers(0, len(self._own), self.BATCH)
        of_documents = self._documents[rows]
        error = of_documents @ weights[0].T - self._own[rows]
        self._documents[rows] -= self.OWN_LEARNING_RATE * (error @ weights[0])
        return [error.T @ of_documents / self.BATCH]

    def accuracy(self, weights):
        known, asked = weights[0][::2], weights[0][1::2]
        inverse = numpy.linalg.inv(known.T @ known + self.RIDGE * numpy.eye(self.RANK))
        fitted = self._test[:, ::2] @ known @ inverse
        missed = self._test[:, 1::2] - fitted @ asked.T
        return float(1 - numpy.square(missed).sum() / numpy.square(self._test[:, 1::2]).sum())


class Topics:
    """Latent Dirichlet allocation by collapsed Gibbs sampling: the weights are the table that
    counts how often each trigram is assigned to each topic, and a gradient is the change of these
    counts with its sign reversed. All tokens of an iteration are drawn at once, from the counts
    before it. 24,576 weights.

    The accuracy is how much better the topics predict one half of each test document than the
    trigrams' frequencies do: 1 - the ratio of the perplexities. The document's topics are inferred
    from its other half."""

    TOPICS = 12
    ALPHA, BETA = 0.1, 0.05
    BATCH = 160  # documents per rank
    FOLDING_STEPS = 10

    names = ["counts"]
    prepare = staticmethod(prepare_documents)

    def __init__(self, rank, world_size, folder):
        self.LEARNING_RATE = float(world_size)  # the mean of the changes becomes their sum
        shares = [load_documents(each, world_size, folder) for each in range(world_size)]
        self._test = shares[0][1].astype(numpy.float32)
        # Every rank draws the first topics of all ranks' tokens alike.
        self._counts = numpy.zeros((FEATURES, self.TOPICS), numpy.float32)
        for each, (documents, _) in enumerate(shares):
            random = numpy.random.default_rng(1000 + each)
            tokens = [numpy.repeat(numpy.arange(FEATURES), counts) for counts in documents]
            topics = [random.integers(0, self.TOPICS, len(of_document)) for of_document in tokens]
            numpy.add.at(self._counts, (numpy.concatenate(tokens), numpy.concatenate(topics)), 1)
            if each == rank:
                self._tokens, self._topics, self._random = tokens, topics, random
        self._of_documents = numpy.array(
            [numpy.bincount(topics, minlength=self.TOPICS) for topics in self._topics],
            numpy.float32)

    def arrays(self):
        return [self._counts.copy()]

    def gradient(self, weights, _):
        counts = numpy.maximum(weights[0], 0)
        totals = counts.sum(axis=0)
        rows = self._random.choice(len(self._tokens), self.BATCH, replace=False)
        lengths = [len(self._tokens[row]) for row in rows]
        tokens = numpy.concatenate([self._tokens[row] for row in rows])
        topics = numpy.concatenate([self._topics[row] for row in rows])
        documents = numpy.repeat(rows, lengths)
        own = numpy.eye(self.TOPICS, dtype=numpy.float32)[topics]  # the token's own count
        chances = numpy.maximum(counts[tokens] - own, 0) + self.BETA
        chances /= totals - own + FEATURES * self.BETA
        chances *= self._of_documents[documents] - own + self.ALPHA
        bounds = numpy.cumsum(chances, axis=1)
        drawn = self._random.random((len(tokens), 1), numpy.float32) * bounds[:, -1:]
        chosen = (drawn > bounds).sum(axis=1).clip(max=self.TOPICS - 1)
        self._of_documents += (self._count(documents, chosen, len(self._tokens)) -
                               self._count(documents, topics, len(self._tokens)))
        change = self._count(tokens, topics, FEATURES) - self._count(tokens, chosen, FEATURES)
        for row, of_document in zip(rows, numpy.split(chosen, numpy.cumsum(lengths)[:-1])):
            self._topics[row] = of_document
        return [change]

    def _count(self, rows, topics, row_count):
        """Returns how often each pair of row and topic occurs."""
        pairs = rows * self.TOPICS + topics
        counts = numpy.bincount(pairs, minlength=row_count * self.TOPICS)
        return counts.reshape(row_count, self.TOPICS).astype(numpy.float32)

    def accuracy(self, weights):
        counts = numpy.maximum(weights[0], 0) + self.BETA
        of_topics = counts / counts.sum(axis=0)
        frequencies = counts.sum(axis=1) / counts.sum()
        known, asked = self._test[:, ::2], self._test[:, 1::2]
        shares = numpy.full((len(known), self.TOPICS), 1 / self.TOPICS)
        for _ in range(self.FOLDING_STEPS):
            predicted = shares @ of_topics[::2].T
            shares *= (known / predicted) @ of_topics[::2] + self.ALPHA
            shares /= shares.sum(axis=1, keepdims=True)
        # Only the asked half counts, so each prediction is scaled to the sum 1 over that half.
        by_topics = shares @ of_topics[1::2].T
        by_topics /= by_topics.sum(axis=1, keepdims=True)
        by_frequency = frequencies[1::2] / frequencies[1::2].sum()
        gain = (asked * (numpy.log(by_topics) - numpy.log(by_frequency))).sum() / asked.sum()
        return float(1 - numpy.exp(-gain))


PROBLEMS = {**problems.PROBLEMS, "mf": Factors, "lda": Topics}
