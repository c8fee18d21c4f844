#include <algorithm>
#include <catch2/catch.hpp>
#include <span>
#include <vector>

#include "perf/peers/peer.h"
#include "perf/peers/work.h"

namespace pbox::perf {
namespace {

constexpr uint32_t kSeed = 3;
constexpr size_t kElements = 1000;

// Returns the sum of the given ranks' gradients of one iteration.
std::vector<float> sum_of(const std::vector<uint32_t>& ranks, uint32_t iteration) {
  std::vector<float> sum(kElements);
  std::vector<float> gradient(kElements);
  for (const uint32_t rank : ranks) {
    fill_gradient(gradient, kSeed, iteration, rank, 0);
    for (size_t i = 0; i < kElements; ++i) sum[i] += gradient[i];
  }
  return sum;
}

uint64_t wrong_of(const std::vector<float>& sum, uint32_t iteration, uint32_t rank_count) {
  return count_wrong_sums(sum, kSeed, iteration, rank_count, 0);
}

TEST_CASE("the sum of every rank's gradient is right, in any order, up to the most ranks") {
  CHECK(wrong_of(sum_of({0, 1, 2}, 5), 5, 3) == 0);
  CHECK(wrong_of(sum_of({2, 0, 1}, 5), 5, 3) == 0);
  std::vector<uint32_t> ranks(kPatternRanksMax);
  for (uint32_t rank = 0; rank < kPatternRanksMax; ++rank) ranks[rank] = rank;
  CHECK(wrong_of(sum_of(ranks, 1), 1, kPatternRanksMax) == 0);
}

TEST_CASE("a missing, doubled or swapped contribution is wrong in every element") {
  CHECK(wrong_of(sum_of({0, 1}, 5), 5, 3) == kElements);
  CHECK(wrong_of(sum_of({0, 1, 2, 2}, 5), 5, 3) == kElements);
  CHECK(wrong_of(sum_of({1, 1, 1}, 5), 5, 3) == kElements);
}

TEST_CASE("the sum of another iteration is wrong in most elements") {
  CHECK(wrong_of(sum_of({0, 1, 2}, 4), 5, 3) > kElements / 2);
}

TEST_CASE("a sum that lies one element aside is wrong in most elements") {
  CHECK(count_wrong_sums(sum_of({0, 1}, 5), kSeed, 5, 2, 1) > kElements / 2);
}

TEST_CASE("a gradient is cut into the model's tensors, and fills and checks them as one") {
  PeerOptions options;
  auto gradient = Gradient::create(options);
  REQUIRE(gradient.ok());
  REQUIRE(gradient->tensors().size() == 161);
  gradient->fill(7, 0);
  CHECK(gradient->count_wrong(7, 1) == 0);
  gradient->tensors().back()[3] += 1;
  CHECK(gradient->count_wrong(7, 1) == 1);
  options.layout = "buffer";
  CHECK(Gradient::create(options)->tensors().size() == 1);
}

TEST_CASE("a segment of a scattered sum is right in its place, or where the buffer begins") {
  constexpr uint32_t kRanks = 4, kRank = 2, kIteration = 7;
  const PeerOptions options{.layout = "buffer", .call = "reduce_scatter", .worker_count = kRanks};
  auto gradient = Gradient::create(options);
  REQUIRE(gradient.ok());
  const std::span<float> all = gradient->tensors()[0];
  const size_t segment = all.size() / kRanks;
  const auto wrong = [&](uint32_t rank, bool at_front) {
    return gradient->count_wrong_scattered(kIteration, kRanks, rank, at_front);
  };
  gradient->fill(kIteration, 0);  // its weight is 1
  CHECK(wrong(kRank, false) == segment);
  for (size_t i = 0; i < segment; ++i) {
    all[kRank * segment + i] *= static_cast<float>(pattern_weight_sum(kRanks));
  }
  CHECK(wrong(kRank, false) == 0);
  CHECK(wrong(kRank - 1, false) == segment);
  CHECK(wrong(kRank, true) == segment);
  std::copy_n(all.begin() + kRank * segment, segment, all.begin());
  CHECK(wrong(kRank, true) == 0);
}

TEST_CASE("a gathered buffer is right if each rank's segment has that rank's values") {
  constexpr uint32_t kRanks = 4, kIteration = 7;
  const PeerOptions options{.layout = "buffer", .call = "all_gather", .worker_count = kRanks};
  auto gradient = Gradient::create(options);
  REQUIRE(gradient.ok());
  const std::span<float> all = gradient->tensors()[0];
  const size_t segment = all.size() / kRanks;
  gradient->fill(kIteration, 0);
  CHECK(gradient->count_wrong_gathered(kIteration, kRanks) == (kRanks - 1) * segment);
  for (size_t i = 0; i < all.size(); ++i) {
    all[i] *= static_cast<float>(pattern_weight(static_cast<uint32_t>(i / segment)));
  }
  CHECK(gradient->count_wrong_gathered(kIteration, kRanks) == 0);
}

TEST_CASE("tensors without equal segments are refused where the call needs segments") {
  PeerOptions options{.call = "all_gather", .worker_count = 3};
  const auto gradient = Gradient::create(options);
  REQUIRE_FALSE(gradient.ok());
  CHECK(gradient.error().message.find("--call 'all_gather'") == 0);
  options.call = "all_reduce";
  CHECK(Gradient::create(options).ok());
}

TEST_CASE("options that say nothing sensible are refused with the option's name") {
  const auto parse = [](std::vector<const char*> words) {
    words.insert(words.begin(), "program");
    return parse_peer_options(static_cast<int>(words.size()), const_cast<char**>(words.data()));
  };
  CHECK(parse({"--workers", "4", "--model", "vgg19"})->worker_count == 4);
  for (const auto& words : std::vector<std::vector<const char*>>{{"--workers", "0"},
                                                                 {"--workers", "65"},
                                                                 {"--seed", "x"},
                                                                 {"--layout", "heap"},
                                                                 {"--call", "gather"},
                                                                 {"--speed", "1"},
                                                                 {"--seed"}}) {
    const auto options = parse(words);
    REQUIRE_FALSE(options.ok());
    CHECK(options.error().message.find(words[0]) == 0);
  }
}

}  // namespace
}  // namespace pbox::perf
