// Jobs with consistency models other than BSP on boxes of a cluster with a real etcd. Their parts
// move between boxes while ranks of different speed train. Each element of the weights belongs to
// one rank, which alone adds 1 to it in each iteration. The element's value is thus the number of
// that rank's iterations.
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>

#include "tests/support/box_cluster.h"

namespace pbox::test {
namespace {

constexpr uint32_t kElements = 120'000;
constexpr uint32_t kWorkers = 3;
constexpr uint32_t kStaleness = 2;
// pause of each rank per iteration; the last rank pauses for twice as long
constexpr useconds_t kPauseUs = 3'000;

#ifdef __SANITIZE_THREAD__
constexpr uint32_t kIterations = 60;
#else
constexpr uint32_t kIterations = 300;
#endif
constexpr uint32_t kLastIterations = 10;  // after all parts have moved

struct Model {
  const char* name;
  pbox_sync sync;
  pbox_reads reads = PBOX_READS_FRESH;
  pbox_release release = PBOX_RELEASE_SOFT;

  bool has_bound() const { return sync == PBOX_SYNC_SSP || sync == PBOX_SYNC_ESSP; }
};

class Rank {
 public:
  Rank(const std::string& boxes, const Model& model, uint32_t rank)
      : model_(model),
        rank_(rank),
        worker_({.box = boxes,
                 .job = model.name,
                 .rank = rank,
                 .world_size = kWorkers,
                 .adjust = [&](auto& options) {
                   options.mode = PBOX_MODE_OPTIMIZE;
                   options.reduction = PBOX_SUM;
                   options.recovery = PBOX_RECOVERY_NONE;
                   options.sync = model.sync;
                   if (model.has_bound()) options.staleness = kStaleness;
                   options.reads = model.reads;
                   options.release = model.release;
                   if (model.sync == PBOX_SYNC_DROP) options.quorum = 1;
                 }}) {
    worker_.tensor("weights", kElements);
    worker_.join_with_sgd(1, 0, weights_);
  }

  void train(const Line& line) {
    for (uint32_t iteration = 1; iteration <= kIterations; ++iteration) {
      if (iteration + kLastIterations == kIterations) line.await_go();
      usleep(rank_ + 1 == kWorkers ? 2 * kPauseUs : kPauseUs);
      step(-1);
      for (uint32_t rank = 0; rank < kWorkers; ++rank) check(rank, iteration);
    }
    worker_.must(pbox_barrier(worker_.context(), 0));
    // All updates are in the weights by now, but this rank's own copy may be as stale as the model
    // allows.
    for (uint32_t left = 0; left <= kStaleness; ++left) step(0);
    for (uint32_t rank = 0; rank < kWorkers && model_.sync != PBOX_SYNC_DROP; ++rank) {
      const auto [least, most] = span_of(rank);
      require(least == kIterations && most == kIterations,
              "of rank " + std::to_string(rank) + " " + std::to_string(least) + " to " +
                  std::to_string(most) + " iterations are in at the end");
    }
    require(worker_.statistics().recoveries > 0, "no part moved");
    worker_.must(pbox_barrier(worker_.context(), 0));
    worker_.leave();
  }

 private:
  // Exchanges in place: the result of the read overwrites the pushed values.
  void step(float own) {
    for (uint32_t index = 0; index < kElements; ++index) {
      weights_[index] = index % kWorkers == rank_ ? own : 0;
    }
    worker_.push_pull(0, weights_.data(), weights_.data());
    worker_.wait(0);
  }

  // Returns the fewest and the most iterations of the rank that any of its elements contains.
  std::pair<uint32_t, uint32_t> span_of(uint32_t rank) const {
    float least = weights_[rank], most = weights_[rank];
    for (uint32_t index = rank; index < kElements; index += kWorkers) {
      least = std::min(least, weights_[index]);
      most = std::max(most, weights_[index]);
    }
    return {static_cast<uint32_t>(least), static_cast<uint32_t>(most)};
  }

  void check(uint32_t rank, uint32_t iteration) const {
    const auto [least, most] = span_of(rank);
    const std::string found = "rank " + std::to_string(rank_) + " finds " + std::to_string(least) +
                              " to " + std::to_string(most) + " iterations of rank " +
                              std::to_string(rank) + " after its " + std::to_string(iteration);
    require(most <= kIterations, found);
    if (model_.sync == PBOX_SYNC_DROP) return;
    require(rank != rank_ || (least == iteration && most == iteration), found);
    require(!model_.has_bound() || least + kStaleness >= iteration, found);
  }

  const Model& model_;
  uint32_t rank_;
  std::vector<float> weights_ = std::vector<float>(kElements);
  AbiWorker worker_;
};

}  // namespace

// The jobs run one after the other, because their ranks are many for few cores.
TEST_CASE("under every model parts move during training, and no update is lost or counted twice") {
  const Model models[] = {
      {.name = "asp", .sync = PBOX_SYNC_ASP},
      {.name = "ssp", .sync = PBOX_SYNC_SSP},
      {.name = "lazy", .sync = PBOX_SYNC_SSP, .release = PBOX_RELEASE_LAZY},
      {.name = "cached", .sync = PBOX_SYNC_SSP, .reads = PBOX_READS_CACHED},
      {.name = "essp", .sync = PBOX_SYNC_ESSP},
      {.name = "drop", .sync = PBOX_SYNC_DROP},
  };
  const EtcdCluster etcd(3);
  BoxCluster boxes(etcd, {"a", "b"});
  const auto moved = [&] {
    return boxes["a"].metric("pbox_parts_moved_total") +
           boxes["b"].metric("pbox_parts_moved_total");
  };
  for (const Model& model : models) {
    INFO(model.name);
    std::vector<WorkerProcess> workers;
    for (uint32_t rank = 0; rank < kWorkers; ++rank) {
      workers.emplace_back([&, rank](Line& line) {
        Rank trained(boxes.control(), model, rank);
        line.say("begun");
        trained.train(line);
      });
    }
    for (auto& worker : workers) CHECK(worker.heard() == "begun");
    const double before = moved();
    for (const std::string box : {"a", "b"}) {
      const Daemon& other = boxes[box == "a" ? "b" : "a"];
      drain(other, box, true);
      REQUIRE(await([&] { return boxes.parts(box) == 0; }));
      drain(other, box, false);
    }
    for (const auto& worker : workers) worker.go();
    for (auto& worker : workers) CHECK(worker.finish() == "");
    CHECK(moved() > before);
  }
  for (const Daemon* box : boxes.all()) CHECK(box->metric("pbox_jobs_failed_total") == 0);
}

}  // namespace pbox::test
