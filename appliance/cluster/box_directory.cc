#include "appliance/cluster/box_directory.h"

#include <ctime>
#include <nlohmann/json.hpp>
#include <utility>

namespace pbox::cluster {
namespace {

using Json = nlohmann::json;

constexpr char kBoxes[] = "boxes/";
constexpr char kLeader[] = "leader";

std::string lead_text(const std::string& name) {
  return Json{{"box", name}, {"since_unix_s", static_cast<uint64_t>(std::time(nullptr))}}.dump();
}

}  // namespace

BoxDirectory::BoxDirectory(boost::asio::io_context& context, Store& store, const BoxRecord& self,
                           Log log, std::function<void()> on_change)
    : self_(self),
      log_(std::move(log)),
      boxes_(context, store, kBoxes,
             [this, on_change = std::move(on_change)] {
               read_records();
               on_change();
             }),
      registration_(
          context, store, kBoxes + self.name, [this] { return to_text(self_); },
          [this] { on_registered(); }),
      lead_(
          context, store, kLeader, [this] { return lead_text(self_.name); },
          [this] { on_lead(); }) {}

void BoxDirectory::on_session() {
  registration_.on_session();
  lead_.on_session();
}

void BoxDirectory::set_capacity(uint64_t bytes_per_s) {
  if (std::exchange(self_.capacity_bytes_per_s, bytes_per_s) != bytes_per_s) {
    registration_.refresh();
  }
}

void BoxDirectory::set_job_memory(uint64_t bytes) {
  if (std::exchange(self_.job_memory_bytes, bytes) != bytes) registration_.refresh();
}

void BoxDirectory::on_registered() {
  const bool is_registered = registration_.held();
  if (is_registered && !was_registered_) {
    log_(Severity::kInfo, "registered", "box '" + self_.name + "' has joined the cluster");
  }
  was_registered_ = is_registered;
  const KeyValue* holder = registration_.holder();
  if (is_registered || holder == nullptr) return rival_.clear();
  const BoxRecord other = from_text(self_.name, holder->value);
  if (other.incarnation == self_.incarnation || other.incarnation == rival_) return;
  rival_ = other.incarnation;
  log_(Severity::kWarning, "name_taken",
       "box '" + self_.name + "' is already registered at " + other.control +
           ". If that is this box before a crash, its lease expires soon. If it is another box, "
           "give each box its own [box] name");
}

void BoxDirectory::on_lead() {
  if (leads() == had_lead_) return;
  had_lead_ = leads();
  log_(
      Severity::kInfo, had_lead_ ? "leads" : "leads_no_more",
      "box '" + self_.name + (had_lead_ ? "' leads the cluster" : "' no longer leads the cluster"));
}

void BoxDirectory::read_records() {
  records_.clear();
  for (const auto& [key, entry] : boxes_.entries()) {
    records_.push_back(from_text(key.substr(sizeof(kBoxes) - 1), entry.value));
    last_records_[records_.back().name] = records_.back();
  }
}

const BoxRecord* BoxDirectory::last_record(const std::string& box) const {
  const auto found = last_records_.find(box);
  return found == last_records_.end() ? nullptr : &found->second;
}

std::optional<Leader> BoxDirectory::leader() const {
  const KeyValue* holder = lead_.holder();
  if (holder == nullptr) return std::nullopt;
  constexpr bool kThrows = false;
  const Json object = Json::parse(holder->value, nullptr, kThrows);
  Leader leader;
  if (!object.is_object()) return leader;
  if (object.contains("box") && object["box"].is_string()) leader.name = object["box"];
  if (object.contains("since_unix_s") && object["since_unix_s"].is_number_unsigned()) {
    leader.since_unix_s = object["since_unix_s"];
  }
  return leader;
}

}  // namespace pbox::cluster
