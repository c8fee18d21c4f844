#include "appliance/cluster/part_map.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

#include "appliance/placement/place.h"
#include "base/limits.h"

namespace pbox::cluster {
namespace {

using Json = nlohmann::json;

// placement counts bytes of chunks in 32 bits; parts are all of one size, so any will do.
constexpr uint32_t kUnit = 1u << 20;

// Puts parts on boxes, one by one onto the box that is then done first.
void place(const std::vector<uint32_t>& parts, std::vector<CandidateBox> boxes, PartMap& plan) {
  double known = 0;
  size_t count = 0;
  for (const CandidateBox& box : boxes) {
    known += box.bytes_per_second;
    count += box.bytes_per_second > 0 ? 1 : 0;
  }
  const double usual = count > 0 ? known / static_cast<double>(count) : 1;
  const double unit_bytes = std::max(1.0, plan.bytes_per_part());
  std::vector<placement::BoxLoad> loads;
  for (const CandidateBox& box : boxes) {
    loads.push_back(
        {box.bytes / unit_bytes * kUnit, box.bytes_per_second > 0 ? box.bytes_per_second : usual});
  }
  std::vector<placement::BoxIndex> box_of_part(plan.boxes.size(), placement::kNoBox);
  const std::vector<uint32_t> sizes(plan.boxes.size(), kUnit);
  placement::place_largest_first(sizes, parts, loads, box_of_part);
  for (const uint32_t part : parts) plan.boxes[part] = boxes[box_of_part[part]].name;
}

}  // namespace

std::string to_text(const PartMap& plan) {
  return Json{{"chunk_bytes", plan.chunk_bytes}, {"bytes", plan.bytes}, {"may_move", plan.may_move},
              {"is_over", plan.is_over},         {"boxes", plan.boxes}, {"avoided", plan.avoided}}
      .dump();
}

std::optional<PartMap> part_map_from_text(const std::string& text) {
  constexpr bool kThrows = false;
  const Json object = Json::parse(text, nullptr, kThrows);
  if (!object.is_object()) return std::nullopt;
  const auto chunk_bytes = object.find("chunk_bytes");
  const auto bytes = object.find("bytes");
  const auto boxes = object.find("boxes");
  const bool has_fields = chunk_bytes != object.end() && chunk_bytes->is_number_unsigned() &&
                          bytes != object.end() && bytes->is_number_unsigned() &&
                          boxes != object.end() && boxes->is_array();
  if (!has_fields || boxes->empty() || boxes->size() > limits::kPartsPerJobMax) {
    return std::nullopt;
  }
  PartMap plan{.chunk_bytes = *chunk_bytes, .bytes = *bytes, .boxes = {}};
  const auto is_true = [&](const char* name) {
    const auto field = object.find(name);
    return field != object.end() && field->is_boolean() && field->get<bool>();
  };
  plan.may_move = is_true("may_move");
  plan.is_over = is_true("is_over");
  for (const Json& box : *boxes) {
    if (!box.is_string()) return std::nullopt;
    plan.boxes.push_back(box);
  }
  if (const auto avoided = object.find("avoided"); avoided != object.end()) {
    if (!avoided->is_object() || avoided->size() > limits::kPartsPerJobMax) return std::nullopt;
    for (const auto& [box, until] : avoided->items()) {
      if (!until.is_number_unsigned()) return std::nullopt;
      plan.avoided[box] = until;
    }
  }
  return plan;
}

PartMap make_plan(uint64_t bytes, uint32_t chunk_bytes, std::vector<CandidateBox> boxes) {
  uint32_t pipelines = 0;
  for (const CandidateBox& box : boxes) pipelines += std::max(1u, box.pipelines);
  // Of fewer chunks than parts some would be empty.
  const uint64_t chunks = std::max<uint64_t>(1, bytes / chunk_bytes);
  const auto parts = static_cast<uint32_t>(std::min<uint64_t>(
      {uint64_t{pipelines} * kPartsPerPipeline, chunks, limits::kPartsPerJobMax}));
  PartMap plan{.chunk_bytes = chunk_bytes, .bytes = bytes, .boxes = {}};
  plan.boxes.resize(parts);
  std::vector<uint32_t> all(parts);
  std::iota(all.begin(), all.end(), 0u);
  place(all, std::move(boxes), plan);
  return plan;
}

PartMap give_away(PartMap plan, const std::string& from, std::vector<CandidateBox> to) {
  std::vector<uint32_t> parts;
  for (uint32_t part = 0; part < plan.boxes.size(); ++part) {
    if (plan.boxes[part] == from) parts.push_back(part);
  }
  place(parts, std::move(to), plan);
  return plan;
}

std::map<std::string, double> bytes_by_box(const std::vector<PartMap>& plans) {
  std::map<std::string, double> bytes;
  for (const PartMap& plan : plans) {
    for (const std::string& box : plan.boxes) bytes[box] += plan.bytes_per_part();
  }
  return bytes;
}

}  // namespace pbox::cluster
