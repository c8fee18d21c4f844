// Ranks that choose how their tensors travel, over a model of a box. All must choose alike in every
// round, whatever the order of events, and even if new processes that know nothing replace ranks.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "base/rng.h"
#include "worker/choice/chosen_tensors.h"

namespace pbox::test {
namespace {

using worker::ChosenTensors;
using worker::CompressionChoice;
using worker::Form;
using worker::Operation;

constexpr uint32_t kWindow = CompressionChoice::kWindowRounds;

std::vector<worker::TensorSpec> specs() {
  std::vector<worker::TensorSpec> tensors(3);
  for (uint32_t tensor = 0; tensor < tensors.size(); ++tensor) {
    tensors[tensor].name = "t" + std::to_string(tensor);
    tensors[tensor].elements = 100'000;
    tensors[tensor].compression = wire::Compression::kQ8;
    tensors[tensor].chooses = tensor != 1;
  }
  return tensors;
}

// One tensor of the job. A result goes to each rank that has pushed.
struct BoxTensor {
  uint32_t finished = 0;  // rounds
  std::set<uint32_t> pushed;
  std::map<uint32_t, Operation> waiting;  // by rank: operations that the result completes
  std::vector<float> sum, last;
};

class World {
 public:
  World(uint64_t seed, uint32_t ranks, double compressed_over_plain)
      : rng_(seed), compressed_over_plain_(compressed_over_plain), ranks_(ranks) {
    const ChosenTensors shape(specs());
    box_.resize(shape.tensors().size());
    for (uint32_t tensor = 0; tensor < box_.size(); ++tensor) {
      is_votes_.push_back(shape.tensors()[tensor].elements == 4);
    }
    for (Rank& rank : ranks_) join(rank);
  }

  void step(bool may_replace) {
    Rank& rank = ranks_[rng_.below(ranks_.size())];
    const auto index = static_cast<uint32_t>(&rank - ranks_.data());
    now_ns_ += 1000;
    if (may_replace && rng_.below(400) == 0) return replace(rank, index);
    if (!rank.done.empty() && rng_.below(2) == 0) return complete(rank, index);
    const auto tensor = static_cast<uint32_t>(rng_.below(specs().size()));
    if (rank.is_pending[tensor]) return;
    rank.is_pending[tensor] = true;
    rank.chosen->start({.tensor = tensor, .input = bytes_, .output = result_}, now_ns_);
    push(rank, index);
  }

  uint32_t least_round() const {
    uint32_t least = UINT32_MAX;
    for (const Rank& rank : ranks_) {
      for (const uint32_t tensor : {0u, 2u}) {
        least = std::min(least, rank.chosen->choice(tensor)->round());
      }
    }
    return least;
  }
  uint32_t rounds(uint32_t tensor) const { return box_[tensor].finished; }
  const CompressionChoice& choice(uint32_t rank, uint32_t tensor) const {
    return *ranks_[rank].chosen->choice(tensor);
  }
  // The form of each round of a caller's tensor.
  std::map<uint32_t, Form>& forms(uint32_t tensor) { return forms_[tensor]; }

 private:
  struct Rank {
    std::unique_ptr<ChosenTensors> chosen;
    std::vector<bool> is_pending;
    std::deque<uint32_t> done;  // tensors of the job whose results are here
  };

  void join(Rank& rank) {
    rank.chosen = std::make_unique<ChosenTensors>(specs());
    rank.chosen->begin([&](uint32_t tensor) { return box_[tensor].finished; });
    rank.is_pending.assign(specs().size(), false);
    rank.done.clear();
  }

  // The pushes of the former process still count. Its buffers are gone.
  void replace(Rank& rank, uint32_t index) {
    for (BoxTensor& tensor : box_) tensor.waiting.erase(index);
    join(rank);
  }

  void push(Rank& rank, uint32_t index) {
    for (const Operation& operation : rank.chosen->take_operations()) {
      BoxTensor& tensor = box_[operation.tensor];
      if (operation.fetch) {
        REQUIRE(tensor.finished > 0);
        std::memcpy(operation.output, tensor.last.data(), sizeof(CompressionChoice::Vote));
        rank.done.push_back(operation.tensor);
        continue;
      }
      note_form(rank, operation.tensor);
      REQUIRE(tensor.waiting.emplace(index, operation).second);
      if (tensor.pushed.insert(index).second) add(tensor, operation);
      if (tensor.pushed.size() == ranks_.size()) finish(operation.tensor);
    }
  }

  void note_form(const Rank& rank, uint32_t tensor) {
    const uint32_t caller = rank.chosen->caller_of(tensor);
    if (rank.chosen->choice(caller) == nullptr || is_votes_[tensor]) return;
    const Form form = tensor == caller ? Form::kPlain : Form::kCompressed;
    const uint32_t round = rank.chosen->choice(caller)->round();
    const auto [found, is_new] = forms_[caller].emplace(round, form);
    INFO("tensor " << caller << " round " << round);
    REQUIRE(found->second == form);
  }

  void add(BoxTensor& tensor, const Operation& operation) {
    tensor.sum.resize(4);
    if (!is_votes_[operation.tensor]) return;
    float values[4];
    std::memcpy(values, operation.input, sizeof(values));
    for (size_t at = 0; at < 4; ++at) tensor.sum[at] += values[at];
  }

  // A round in the slower form takes longer, by the common clock.
  void finish(uint32_t id) {
    BoxTensor& tensor = box_[id];
    const uint32_t caller = ranks_[0].chosen->caller_of(id);
    const bool is_compressed = id != caller && !is_votes_[id];
    now_ns_ += static_cast<uint64_t>(1e9 * (is_compressed ? compressed_over_plain_ : 1));
    ++tensor.finished;
    tensor.last = std::exchange(tensor.sum, {});
    tensor.pushed.clear();
    for (const auto& [rank, operation] : tensor.waiting) {
      if (is_votes_[id]) {
        std::memcpy(operation.output, tensor.last.data(), sizeof(CompressionChoice::Vote));
      }
      ranks_[rank].done.push_back(id);
    }
    tensor.waiting.clear();
  }

  void complete(Rank& rank, uint32_t index) {
    const uint32_t tensor = rank.done.front();
    rank.done.pop_front();
    const std::vector<uint32_t> one = {tensor};
    for (const uint32_t caller : rank.chosen->complete(one, now_ns_)) {
      REQUIRE(rank.is_pending[caller]);
      rank.is_pending[caller] = false;
    }
    push(rank, index);
  }

  std::byte bytes_[16] = {}, result_[16] = {};

  Rng rng_;
  double compressed_over_plain_;
  std::vector<Rank> ranks_;
  std::vector<BoxTensor> box_;
  std::vector<bool> is_votes_;
  std::map<uint32_t, std::map<uint32_t, Form>> forms_;
  uint64_t now_ns_ = 1;
};

void run(World& world, uint32_t rounds, bool may_replace) {
  for (uint32_t steps = 0; world.least_round() < rounds; ++steps) {
    REQUIRE(steps < 4'000'000);  // else a rank waits for ever
    world.step(may_replace);
  }
}

}  // namespace

TEST_CASE("a tensor whose compression is chosen is three tensors of the job") {
  const ChosenTensors chosen(specs());
  const auto& tensors = chosen.tensors();
  REQUIRE(tensors.size() == 7);
  CHECK(tensors[0].compression == wire::Compression::kNone);
  CHECK(tensors[1].compression == wire::Compression::kQ8);  // this one is always compressed
  CHECK(tensors[3].name == "t0#packed");
  CHECK(tensors[3].compression == wire::Compression::kQ8);
  CHECK(tensors[4].name == "t0#votes");
  CHECK(tensors[4].elements == 4);
  CHECK(chosen.caller_of(6) == 2);
  CHECK(chosen.priorities({7, 8, 9}) == std::vector<int32_t>{7, 8, 9, 7, 7, 9, 9});
  CHECK(chosen.priorities({}).empty());
}

TEST_CASE("ranks try both forms and keep the faster one") {
  const double ratio = GENERATE(0.4, 2.5);
  World world(11, 3, ratio);
  const uint32_t last = CompressionChoice::kFirstTrial * kWindow;
  run(world, last + 2 * kWindow, false);
  const auto form_of = [&](uint32_t window) { return world.forms(0)[window * kWindow + 3]; };
  CHECK(form_of(0) == Form::kPlain);
  CHECK(form_of(1) == Form::kCompressed);
  const Form better = ratio < 1 ? Form::kCompressed : Form::kPlain;
  for (const uint32_t window : {2u, 3u, 7u, 9u}) CHECK(form_of(window) == better);
  CHECK(form_of(CompressionChoice::kFirstTrial) != better);
  CHECK(world.choice(0, 0).mean_seconds(Form::kPlain) > 0);
  CHECK(world.choice(0, 0).mean_seconds(Form::kCompressed) > 0);
  CHECK(world.choice(0, 0).changes() >= 3);
}

TEST_CASE("all ranks choose alike, though processes are replaced at any time") {
  const uint64_t seed = GENERATE(range(uint64_t{1}, uint64_t{40}));
  INFO("seed " << seed);
  Rng rng(seed);
  World world(seed, 1 + static_cast<uint32_t>(rng.below(4)), rng.below(2) == 0 ? 0.4 : 2.5);
  run(world, 11 * kWindow, true);
  bool has_both = false;
  for (const auto& [round, form] : world.forms(2)) has_both = has_both || form == Form::kCompressed;
  CHECK(has_both);
}

TEST_CASE("votes are small beside gradients, and say the seconds all the same") {
  CompressionChoice choice(0, 0, 0);
  for (uint32_t round = 0; round + 1 < kWindow; ++round) choice.on_round(Form::kPlain, 0.25);
  const CompressionChoice::Vote vote = choice.vote();
  CHECK(vote.seconds[0] > 0);
  CHECK(vote.seconds[0] < 1e-9f);
  CHECK(vote.ranks[0] < 1e-9f);
  CHECK(vote.ranks[1] == 0);
  choice.on_sum(vote, false);
  CHECK(choice.mean_seconds(Form::kPlain) == 0.25);
  CHECK(choice.mean_seconds(Form::kCompressed) == 0);
}

TEST_CASE("compression must be faster by five per cent, and windows of trial take the other form") {
  const auto vote = [](float plain, float compressed) {
    return CompressionChoice::Vote{{3 * plain, 2 * compressed}, {3, 2}};
  };
  CHECK(CompressionChoice::decide(vote(1, 0.9f), 2) == Form::kCompressed);
  CHECK(CompressionChoice::decide(vote(1, 0.97f), 2) == Form::kPlain);
  CHECK(CompressionChoice::decide(vote(1, 0.9f), CompressionChoice::kFirstTrial) == Form::kPlain);
  CHECK(CompressionChoice::decide(vote(1, 2), CompressionChoice::kTrialInterval) ==
        Form::kCompressed);
  CHECK(CompressionChoice::decide({{5, 0}, {3, 0}}, 3) == Form::kCompressed);
  CHECK(CompressionChoice::decide({{0, 5}, {0, 3}}, 3) == Form::kPlain);
}

}  // namespace pbox::test
