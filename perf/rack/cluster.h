// A rack with etcd at its switch, and boxes that are one cluster or more.
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
  };
  // Starts etcd, and no box. Throws std::runtime_error, as everything here does.
  explicit RackCluster(const Options& options);
  ~RackCluster();
  RackCluster(const RackCluster&) = delete;
  RackCluster& operator=(const RackCluster&) = delete;

  Rack& rack() { return rack_; }
  static std::string box_name(uint32_t index) { return "box" + std::to_string(index); }
  static Link link(double megabits) {
    return {.bits_per_second = static_cast<uint64_t>(megabits * 1e6)};
  }

  // On machine `index`, where there may be a box of another cluster. One pipeline: cores are few.
  RackBox start_box(const std::string& cluster, uint32_t index,
                    const std::vector<std::string>& flags) const;
  // Until as many are registered.
  void await_boxes(const std::string& cluster, uint64_t count) const;
  // A job whose parts are dealt out like this, each by its box, as long as nothing moves them.
  void put_plan(const std::string& cluster, const std::string& job, uint64_t model_bytes,
                const std::vector<uint32_t>& parts) const;
  // As `pboxctl drain` does.
  void drain(const std::string& cluster, uint32_t index, bool is_drained) const;

 private:
  std::string ask_etcd(const std::string& path, const std::string& json) const;
  void put(const std::string& key, const std::string& value) const;

  std::string folder_;
  Rack rack_;
  std::unique_ptr<Program> etcd_;
};

}  // namespace pbox::perf
