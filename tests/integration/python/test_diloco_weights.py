"""DiLoCo whose means are weighted by the tokens that ranks have trained on."""

import os
import unittest

import numpy

import pbox
from support import BoxTestCase, weights_of
from test_diloco import WORKERS, inner_step, open_diloco, oracle
from test_diloco_quorum import push_late

# The roundings of test_diloco.py, and those of the product with the weight and of the quotient.
ROUNDING = 8 * 2.0**-24


def tokens_at(rank, step):
    return 1 + 90 * rank + 11 * (step % 5)


def rounded(tokens):
    """Returns the nearest number of 8 significant bits."""
    shift = max(0, tokens.bit_length() - 8)
    return (tokens + (1 << shift >> 1)) >> shift << shift


def weighted_mean(sync_every):
    def mean(changes, step):
        weights = [rounded(sum(tokens_at(rank, since)
                               for since in range(max(1, step - sync_every + 1), step + 1)))
                   for rank in range(WORKERS)]
        return sum(weight * change for weight, change in zip(weights, changes)) / sum(weights)

    return mean


def train_cases(options, steps, cases):
    """Returns this rank's weights after the steps, by case."""
    results = []
    for index, case in enumerate(cases):
        model, inner, diloco = open_diloco({**options, "job": f"{options['job']}-{index}"}, case,
                                           weight="tokens")
        with diloco:
            for step in range(1, steps + 1):
                diloco.add_tokens(tokens_at(options["rank"], step))
                inner_step(model, inner, step, options["rank"])
            diloco.client.barrier()
        results.append(weights_of(model))
    return results


class DilocoWeightsTest(BoxTestCase):
    def test_a_change_counts_as_often_as_it_was_trained_on_tokens(self):
        cases = [{"sync_every": every, "fragments": fragments, "delay": delay, "alpha": 0.5,
                  **more}
                 for every, fragments, delay in ((1, 1, 0), (8, 1, 0), (8, 4, 2), (24, 4, 2))
                 for more in ({}, {"quorum": WORKERS})]
        steps = 48
        results = self.run_ranks(train_cases, WORKERS, steps, cases)
        for index, case in enumerate(cases):
            published = {name: value for name, value in case.items() if name != "quorum"}
            expected = oracle(steps, **published, mean=weighted_mean(case["sync_every"]))
            unweighted = oracle(steps, **published)
            tolerance = ROUNDING * (steps // case["sync_every"])
            with self.subTest(**case):
                for result, wanted, plain in zip(results, expected, unweighted):
                    for actual, one, other in zip(result[index], wanted, plain):
                        self.assertLessEqual(numpy.abs(actual - one).max(), tolerance)
                        self.assertGreater(numpy.abs(actual - other).max(), tolerance)

    def test_late_changes_have_their_weight_in_the_next_outer_step(self):
        folder = self.temporary_path("folder")
        os.mkdir(folder)
        case = {"sync_every": 1, "quorum": 1, "grace": 0, "weight": "tokens",
                "outer": {"lr": 1.0, "momentum": 0}}
        first, late = self.run_ranks(push_late, 2, case, folder)
        self.assertEqual(first, [-1.0, -1.0 - (3 * 2 + 4) / 4])
        self.assertEqual(late, [-1.0])

    def test_a_checkpoint_holds_the_tokens_since_the_last_exchange(self):
        case = {"sync_every": 4, "fragments": 2, "weight": "tokens"}
        model, inner, diloco = open_diloco({"rank": 0, **self.options(1)}, case)
        with diloco:
            for step in range(1, 4):
                diloco.add_tokens(5)
                inner_step(model, inner, step, 0)
            state = diloco.state_dict()
        self.assertEqual(state["tokens"], [5, 15])
        model, inner, diloco = open_diloco({"rank": 0, **self.options(1, job="again")}, case, model,
                                           state=state)
        with diloco:
            inner_step(model, inner, 1, 0)
            inner_step(model, inner, 2, 0)  # sends the first fragment
            with self.assertRaises(pbox.InvalidArgument):
                for step in range(3, 9):
                    inner_step(model, inner, step, 0)
            self.assertEqual(diloco.steps, 5)

    def test_errors_say_what_to_do(self):
        def refused(text, action):
            with self.assertRaises(pbox.InvalidArgument) as raised:
                action()
            self.assertIn(text, str(raised.exception))

        options = {"rank": 0, **self.options(1)}
        for case, text in (({"weight": "samples"}, "weight is 'samples': it must be one of equal"),
                           ({"weighted": 1}, "sets weighted itself; leave it out, and give `wei")):
            refused(text, lambda: open_diloco(options, {"sync_every": 2, **case}))
        model, inner, diloco = open_diloco(options, {"sync_every": 2, "weight": "tokens"})
        with diloco:
            refused("count is 0", lambda: diloco.add_tokens(0))
            inner_step(model, inner, 1, 0)
            before = weights_of(model)
            refused("call add_tokens() before each step", lambda: inner_step(model, inner, 2, 0))
            for weights, one in zip(weights_of(model), before):  # the step was not taken
                numpy.testing.assert_array_equal(weights, one)
            diloco.add_tokens(1)
            inner_step(model, inner, 2, 0)
            self.assertEqual(diloco.steps, 2)
        model, inner, diloco = open_diloco({**options, "job": "equal"}, {"sync_every": 2})
        with diloco:
            refused("tokens count only with weight='tokens'", lambda: diloco.add_tokens(1))


if __name__ == "__main__":
    unittest.main()
