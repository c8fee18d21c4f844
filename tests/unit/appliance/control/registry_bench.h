// The surroundings of one part of the registry, without a registry: a context, pipelines that carry
// out commands at once, a directory that a test controls, and an owner that records its calls.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/unit/appliance/control/registry_desk.h"

namespace pbox::control {

class RecordingOwner : public JobOwner {
 public:
  void advance(const JobKey& part) override {
    advanced.push_back(part);
    if (on_advance) on_advance(part);
  }
  void fail(Job& job, const Error& error) override {
    failures.push_back(error.message);
    if (on_fail) on_fail(job);
  }
  void gather_again(Job& /*job*/, Regathering how) override {
    gathered.emplace_back(how.event.name);
  }
  uint64_t memory_taken_bytes(std::optional<std::string_view>) const override {
    return memory_taken;
  }

  std::vector<JobKey> advanced;
  std::vector<std::string> failures;
  std::vector<std::string> gathered;  // names of events
  std::function<void(const JobKey&)> on_advance;
  std::function<void(Job&)> on_fail;
  uint64_t memory_taken = 0;  // the answer for every tenant, too
};

struct Bench {
  RegistryContext context{{.box_name = "here"}};
  SynchronousHost host{2};
  SpiAllocator spis{2, seeded_draws(1)};
  MovableParts parts;
  RecordingOwner owner;

  Bench() {
    context.now_ns = 1000 * kSecond;
    parts.knows_boxes = true;
  }
  ~Bench() { close_jobs(); }

  // Adds the job that the message describes; all its ranks are ready.
  Job& add(const proto::WorkerMessage& message) {
    auto spec = parse_join(message.join(), {});
    Job& job = context.jobs.add(
        std::make_unique<Job>(std::move(*spec), context.now_ns,
                              Placement{.loads_bytes = std::vector<uint64_t>(host.count(), 0)},
                              JobTimeouts{.join_ns = 60 * kSecond, .lost_ns = 10 * kSecond}));
    for (Member& member : job.members()) {
      member.state = Member::State::kJoined;
      member.path_mtu = 1500;
    }
    return job;
  }
  // Makes all ranks resume after a session of `epoch` at `box`, with `rounds` rounds consumed.
  static void resume(Job& job, const std::string& box, uint32_t epoch, uint32_t rounds) {
    for (Member& member : job.members()) {
      member.resumes = member.stated = true;
      member.box = box;
      member.epoch = epoch;
      member.incarnation = 1000;
      member.consumed.assign(job.shards().chunk_count(), rounds);
    }
  }
  bool open(Job& job, uint32_t epoch = 1) {
    return job.open(host, spis, {nullptr, ""}, epoch, nullptr).ok();
  }
  void close_jobs() {
    for (const auto& [part, job] : context.jobs) job->close(host, spis);
  }
  void pass(uint64_t duration_ns) { context.now_ns += duration_ns; }
  bool noted(const std::string& event) const {
    for (const RegistryEvent& one : context.events) {
      if (one.name == event) return true;
    }
    return false;
  }
};

}  // namespace pbox::control
