// Two boxes of one cluster on one store, for the tests of PartMaps. Each box has its own PartMaps.
// They share the store's session, so each of them believes that it leads.
#pragma once

#include <algorithm>
#include <array>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/write.hpp>
#include <catch2/catch.hpp>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "appliance/cluster/local_store.h"
#include "appliance/cluster/part_maps.h"
#include "appliance/storage/disk.h"
#include "nic/wire/control_frame.h"
#include "nic/wire/control_versions.h"
#include "tests/unit/appliance/cluster/contract.h"

namespace pbox::cluster {

using boost::asio::ip::tcp;
using std::chrono::milliseconds;

inline constexpr uint64_t kBytes = 100u << 20;
inline constexpr uint64_t kJobMemory = 1u << 30;  // memory for jobs at each box
inline constexpr char kJob[] = "resnet";

inline proto::AskPartMap question(uint64_t bytes, const std::string& lost_box = {}) {
  proto::AskPartMap question;
  question.set_job(kJob);
  question.set_bytes(bytes);
  question.set_may_move(true);
  question.set_lost_box(lost_box);
  return question;
}

// A box that is registered and listens on its control port. It may own a part of the job.
struct Box {
  Box(Desk& desk, Store& store, const std::string& name, milliseconds delete_after,
      wire::VersionRange box_versions, bool needs_majority)
      : acceptor(desk.context, {boost::asio::ip::make_address("127.0.0.1"), 0}),
        versions(box_versions),
        box_directory(
            desk.context, store, record(name),
            [](BoxDirectory::Severity, const char*, const std::string&) {},
            [this] { maps.on_boxes_changed(); }),
        maps(desk.context, store,
             {.self = name,
              .chunk_bytes = [] { return uint32_t{32'768}; },
              .box_directory = [this]() -> const BoxDirectory& { return box_directory; },
              .has_job = [this](const std::string&) { return has_job; },
              .running = [this](const std::string&) { return running; },
              .report = [this] { return report; },
              .on_change = [this] { ++changes; },
              .on_answers = [] {},
              .log = [](BoxDirectory::Severity, const char*, const std::string&) {},
              .needs_majority = needs_majority,
              .delete_after = delete_after}) {
    answer();
  }

  BoxRecord record(const std::string& name) const {
    BoxRecord record;
    record.name = name;
    record.control = "127.0.0.1:" + std::to_string(acceptor.local_endpoint().port());
    record.data = {"127.0.0.1:9600", "127.0.0.1:9601"};
    record.job_memory_bytes = kJobMemory;
    record.version = "a release";
    record.protocol_version_min = versions.oldest;
    record.protocol_version = versions.newest;
    return record;
  }

  // Answers the questions of every box that connects.
  void answer() {
    acceptor.async_accept([this](const boost::system::error_code& error, tcp::socket socket) {
      if (error) return;
      sockets.push_back(std::make_unique<tcp::socket>(std::move(socket)));
      read(*sockets.back());
      answer();
    });
  }
  void read(tcp::socket& socket) {
    socket.async_read_some(boost::asio::buffer(buffer),
                           [this, &socket](const boost::system::error_code& error, size_t bytes) {
                             if (error) return;
                             wire::FrameReader reader;
                             reader.append(buffer.data(), bytes);
                             proto::WorkerMessage asked;
                             REQUIRE(asked.ParseFromString(**reader.next()));
                             proto::BoxMessage message;
                             if (asked.has_ask_report()) {
                               *message.mutable_report() = report;
                             } else {
                               const auto& ranks = asked.ask_data_addresses().cut_off_ranks();
                               cut_off.insert(cut_off.end(), ranks.begin(), ranks.end());
                               auto& addresses = *message.mutable_data_addresses();
                               addresses.set_up_for_ms(up_for_ms);
                               addresses.set_most_are_cut_off(cut_off.size() >= majority);
                             }
                             boost::system::error_code ignored;
                             boost::asio::write(socket, boost::asio::buffer(*wire::frame(message)),
                                                ignored);
                           });
  }

  tcp::acceptor acceptor;
  wire::VersionRange versions;
  std::array<char, 4096> buffer;
  std::vector<std::unique_ptr<tcp::socket>> sockets;
  BoxDirectory box_directory;
  bool has_job = false;
  std::optional<control::RunningParts> running;
  proto::BoxReport report;
  uint64_t up_for_ms = 0;
  std::vector<uint32_t> cut_off;  // ranks that the other box has said cannot reach this one
  size_t majority = SIZE_MAX;     // from this many ranks on, most count as cut off
  int changes = 0;
  PartMaps maps;
};

// A cluster of two boxes.
struct Cluster {
  explicit Cluster(milliseconds unused_maps_deleted_after = std::chrono::minutes(10),
                   wire::VersionRange versions_of_b = {}, bool maps_need_majority = false)
      : delete_after(unused_maps_deleted_after),
        needs_majority(maps_need_majority),
        disk(std::move(*storage::open_state_folder(""))),
        store(std::move(*LocalStore::open(desk.context, *disk))) {
    store->start({.on_session = [this](int64_t) {
      for (auto& box : boxes) box->box_directory.on_session();
    }});
    REQUIRE(desk.await_session(*store));
    add("a");
    REQUIRE(desk.run_until([&] { return boxes[0]->box_directory.leads(); }));
    add("b", versions_of_b);
    REQUIRE(desk.run_until([&] {
      return std::all_of(boxes.begin(), boxes.end(),
                         [](const auto& box) { return box->box_directory.boxes().size() == 2; });
    }));
  }

  void add(const std::string& name, wire::VersionRange versions = {}) {
    boxes.push_back(
        std::make_unique<Box>(desk, *store, name, delete_after, versions, needs_majority));
  }
  Box& box(size_t index) { return *boxes[index]; }

  Result<proto::PartMap> ask(size_t index, const proto::AskPartMap& what) {
    std::optional<Result<proto::PartMap>> answer;
    box(index).maps.ask(what, [&](const auto& map) { answer.emplace(map); });
    REQUIRE(desk.run_until([&] { return answer.has_value(); }));
    return *answer;
  }
  // Returns the owner of each part, as box `index` sees it.
  std::vector<std::string> owners_seen_by(size_t index) {
    const auto& maps = box(index).maps.maps();
    const auto found = maps.find(kJob);
    return found == maps.end() ? std::vector<std::string>() : found->second.boxes;
  }
  void set_duty(const std::string& name, Duty duty) {
    std::optional<Status> done;
    box(1).maps.set_duty(name, duty, [&](const Status& set) { done.emplace(set); });
    REQUIRE(desk.run_until([&] { return done.has_value(); }));
    REQUIRE(done->ok());
    REQUIRE(desk.run_until(
        [&] { return box(0).maps.duty_of(name) == duty && box(1).maps.duty_of(name) == duty; }));
  }
  // Ends the job on box b. Returns once both boxes see its map as over.
  void end_job() {
    box(1).maps.on_job_over(kJob);
    REQUIRE(desk.run_until([&] {
      return std::all_of(boxes.begin(), boxes.end(), [](const auto& each) {
        const auto found = each->maps.maps().find(kJob);
        return found != each->maps.maps().end() && found->second.is_over;
      });
    }));
  }
  bool await_equal_maps() {
    return desk.run_until(
        [&] { return !owners_seen_by(0).empty() && owners_seen_by(0) == owners_seen_by(1); });
  }
  size_t parts_on(const std::string& name) {
    const auto parts = owners_seen_by(0);
    return static_cast<size_t>(std::count(parts.begin(), parts.end(), name));
  }

  milliseconds delete_after;
  bool needs_majority;
  Desk desk;
  std::unique_ptr<storage::Disk> disk;
  std::unique_ptr<LocalStore> store;
  std::vector<std::unique_ptr<Box>> boxes;
};

inline std::vector<std::string> boxes_of(const proto::PartMap& map) {
  std::vector<std::string> boxes;
  for (const proto::PartPlace& place : map.parts()) boxes.push_back(place.box());
  return boxes;
}

}  // namespace pbox::cluster
