#include "perf/rack/cluster.h"

#include <stdlib.h>

#include <boost/archive/iterators/base64_from_binary.hpp>
#include <boost/archive/iterators/transform_width.hpp>
#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <thread>

#include "appliance/cluster/part_map.h"

namespace pbox::perf {
namespace {

constexpr char kEtcd[] = "http://10.77.255.1:2379";
constexpr int kAnswerMs = 30'000;

// Returns `text` in base64, the encoding of keys and values in etcd's JSON gateway.
std::string encoded(const std::string& text) {
  using namespace boost::archive::iterators;
  using Digits = base64_from_binary<transform_width<std::string::const_iterator, 6, 8>>;
  std::string digits(Digits(text.begin()), Digits(text.end()));
  return digits.append((3 - text.size() % 3) % 3, '=');
}

std::string key_of(const std::string& cluster, const std::string& what) {
  return "pbox/" + cluster + "/" + what;
}

}  // namespace

RackCluster::RackCluster(const Options& options)
    : folder_(std::filesystem::temp_directory_path() / "pbox-cluster-XXXXXX"),
      rack_({.worker_count = options.workers,
             .box_count = options.boxes,
             .mtu = options.mtu,
             .worker_link = link(options.worker_megabits),
             .box_link = link(options.box_megabits)}) {
  if (mkdtemp(folder_.data()) == nullptr)
    throw std::runtime_error("cannot create the folder " + folder_);
  etcd_ =
      rack_.run(rack_.fabric(), {PBOX_ETCD_PATH, "--data-dir=" + folder_, "--listen-client-urls",
                                 kEtcd, "--advertise-client-urls", kEtcd, "--listen-peer-urls",
                                 "http://127.0.0.1:2380", "--log-level=error", "--logger=zap"});
  for (int attempt = 0; attempt < 100; ++attempt) {
    if (ask_etcd("/v3/maintenance/status", "{}").find("version") != std::string::npos) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  throw std::runtime_error("etcd does not answer at " + std::string(kEtcd));
}

RackCluster::~RackCluster() {
  etcd_.reset();
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

RackBox RackCluster::start_box(const std::string& cluster, const std::string& name,
                               const Host& host, const std::vector<std::string>& flags) const {
  std::vector<std::string> all = {
      "--box.name=" + name,        "--cluster.store=etcd", "--cluster.endpoints=10.77.255.1:2379",
      "--cluster.name=" + cluster, "--pipeline.count=1",   "--pipeline.pin=off",
      "--log.level=error"};
  all.insert(all.end(), flags.begin(), flags.end());
  return rack_.start_box(host, all);
}

void RackCluster::await_boxes(const std::string& cluster, uint64_t count) const {
  const nlohmann::json range = {{"key", encoded(key_of(cluster, "boxes/"))},
                                {"range_end", encoded(key_of(cluster, "boxes0"))},
                                {"count_only", true}};
  const std::string wanted = "\"count\":\"" + std::to_string(count) + "\"";
  for (int attempt = 0; attempt < 300; ++attempt) {
    const std::string answer = ask_etcd("/v3/kv/range", range.dump());
    if (answer.find(wanted) != std::string::npos) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  throw std::runtime_error("the cluster does not have " + std::to_string(count) +
                           " boxes after 30 s");
}

void RackCluster::put_plan(const std::string& cluster, const std::string& job, uint64_t model_bytes,
                           const std::vector<uint32_t>& parts) const {
  std::vector<std::string> boxes;
  for (const uint32_t box : parts) boxes.push_back(box_name(box));
  put_plan(cluster, job, model_bytes, std::move(boxes), true);
}

void RackCluster::put_plan(const std::string& cluster, const std::string& job, uint64_t model_bytes,
                           std::vector<std::string> boxes, bool recovers) const {
  cluster::PartMap plan{.chunk_bytes = 32 << 10, .bytes = model_bytes, .boxes = std::move(boxes)};
  plan.may_move = recovers;
  put(key_of(cluster, "jobs/" + job), to_text(plan));
}

void RackCluster::drain(const std::string& cluster, uint32_t index, bool is_drained) const {
  const std::string key = key_of(cluster, "drains/" + box_name(index));
  if (is_drained) return put(key, box_name(index));
  ask_etcd("/v3/kv/deleterange", nlohmann::json{{"key", encoded(key)}}.dump());
}

void RackCluster::put(const std::string& key, const std::string& value) const {
  const nlohmann::json change = {{"key", encoded(key)}, {"value", encoded(value)}};
  if (ask_etcd("/v3/kv/put", change.dump()).find("revision") == std::string::npos) {
    throw std::runtime_error("etcd did not store " + key);
  }
}

// Returns etcd's answer; empty if there is none.
std::string RackCluster::ask_etcd(const std::string& path, const std::string& json) const {
  const auto curl =
      rack_.run(rack_.fabric(), {"curl", "-s", "-m", "2", "-w", "\n", "-d", json, kEtcd + path});
  try {
    return curl->read_line(kAnswerMs);
  } catch (const std::runtime_error&) {
    return "";
  }
}

}  // namespace pbox::perf
