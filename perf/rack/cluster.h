// A rack with etcd at its switch. Its boxes form one or more clusters.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "perf/rack/rack.h"

namespace pbox::perf {

class RackCluster {
 public:
  struct Options {
    uint32_t workers = 2, boxes = 3;
    double worker_megabits = 400, box_megabits = 400;  // rate of a cable
    uint32_t mtu = 9000;
  };
  // Starts etcd but no box. Every member function throws std::runtime_error on failure.
  explicit RackCluster(const Options& options);
  ~RackCluster();
  RackCluster(const RackCluster&) = delete;
  RackCluster& operator=(const RackCluster&) = delete;

  Rack& rack() { return rack_; }
  static std::string box_name(uint32_t index) { return "box" + std::to_string(index); }
  static Link link(double megabits) {
    return {.bits_per_second = static_cast<uint64_t>(megabits * 1e6)};
  }

  // Starts a box on machine `index`, which may also run a box of another cluster. The box has one
  // pipeline, because the machine has few cores.
  RackBox start_box(const std::string& cluster, uint32_t index,
                    const std::vector<std::string>& flags) const {
    return start_box(cluster, box_name(index), rack_.box(index), flags);
  }
  // Starts such a box on any host, for example a worker's.
  RackBox start_box(const std::string& cluster, const std::string& name, const Host& host,
                    const std::vector<std::string>& flags) const;
  // Waits until exactly `count` boxes are registered.
  void await_boxes(const std::string& cluster, uint64_t count) const;
  // Publishes the part map of a new job, whose parts may move: parts[i] is the index of the box
  // that owns part i at first.
  void put_plan(const std::string& cluster, const std::string& job, uint64_t model_bytes,
                const std::vector<uint32_t>& parts) const;
  // Publishes such a part map, given the boxes' names. Parts may move only if the job recovers.
  void put_plan(const std::string& cluster, const std::string& job, uint64_t model_bytes,
                std::vector<std::string> boxes, bool recovers) const;
  // Starts or ends the drain of a box, as `pboxctl drain` does.
  void drain(const std::string& cluster, uint32_t index, bool is_drained) const;

 private:
  std::string ask_etcd(const std::string& path, const std::string& json) const;
  void put(const std::string& key, const std::string& value) const;

  std::string folder_;
  Rack rack_;
  std::unique_ptr<Program> etcd_;
};

}  // namespace pbox::perf
