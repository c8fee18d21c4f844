#include "appliance/cluster/part_map.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

#include "appliance/placement/place.h"
#include "base/check.h"
#include "base/limits.h"

namespace pbox::cluster {
namespace {

using Json = nlohmann::json;

// The placement code counts bytes in 32 bits. All parts have the same size, so any unit will do.
constexpr uint32_t kUnit = 1u << 20;

// Assigns the parts one by one, each to the box that would then finish first among those that have
// room. Parts without room anywhere keep their owner. Returns how many those are.
size_t place(const std::vector<uint32_t>& parts, std::vector<CandidateBox> boxes, PartMap& map) {
  double known = 0;
  size_t count = 0;
  for (const CandidateBox& box : boxes) {
    known += box.bytes_per_second;
    count += box.bytes_per_second > 0 ? 1 : 0;
  }
  const double usual = count > 0 ? known / static_cast<double>(count) : 1;
  const double unit_bytes = std::max(1.0, map.bytes_per_part());
  std::vector<placement::BoxLoad> loads;
  std::vector<uint64_t> room;
  for (const CandidateBox& box : boxes) {
    loads.push_back(
        {box.bytes / unit_bytes * kUnit, box.bytes_per_second > 0 ? box.bytes_per_second : usual});
    room.push_back(parts_that_fit(map, box));
    if (room.back() == 0) loads.back().bytes_per_second = 0;
  }
  std::vector<placement::BoxIndex> box_of_part(map.boxes.size(), placement::kNoBox);
  const std::vector<uint32_t> sizes(map.boxes.size(), kUnit);
  size_t left = parts.size();
  for (const uint32_t part : parts) {
    const bool has_room = std::any_of(room.begin(), room.end(), [](uint64_t r) { return r > 0; });
    if (!has_room) break;
    placement::place_largest_first(sizes, {part}, loads, box_of_part);
    const size_t box = box_of_part[part];
    PBOX_CHECK(box < boxes.size() && room[box] > 0);
    map.boxes[part] = boxes[box].name;
    if (--room[box] == 0) loads[box].bytes_per_second = 0;
    --left;
  }
  return left;
}

}  // namespace

std::string to_text(const PartMap& map) {
  return Json{{"chunk_bytes", map.chunk_bytes},
              {"bytes", map.bytes},
              {"may_move", map.may_move},
              {"is_over", map.is_over},
              {"boxes", map.boxes},
              {"avoided", map.avoided},
              {"part_memory_bytes", map.part_memory_bytes},
              {"protocol_version", map.protocol_version}}
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
  PartMap map{.chunk_bytes = *chunk_bytes, .bytes = *bytes, .boxes = {}};
  const auto is_true = [&](const char* name) {
    const auto field = object.find(name);
    return field != object.end() && field->is_boolean() && field->get<bool>();
  };
  map.may_move = is_true("may_move");
  map.is_over = is_true("is_over");
  const auto number = [&](const char* name) -> uint64_t {
    const auto field = object.find(name);
    return field != object.end() && field->is_number_unsigned() ? field->get<uint64_t>() : 0;
  };
  map.part_memory_bytes = number("part_memory_bytes");
  map.protocol_version =
      static_cast<uint32_t>(std::min<uint64_t>(number("protocol_version"), UINT32_MAX));
  for (const Json& box : *boxes) {
    if (!box.is_string()) return std::nullopt;
    map.boxes.push_back(box);
  }
  if (const auto avoided = object.find("avoided"); avoided != object.end()) {
    if (!avoided->is_object() || avoided->size() > limits::kPartsPerJobMax) return std::nullopt;
    for (const auto& [box, until] : avoided->items()) {
      if (!until.is_number_unsigned()) return std::nullopt;
      map.avoided[box] = until;
    }
  }
  return map;
}

PartMap make_part_map(uint64_t bytes, uint32_t chunk_bytes, std::vector<CandidateBox> boxes) {
  PBOX_CHECK(chunk_bytes > 0 && !boxes.empty());
  uint32_t pipelines = 0;
  for (const CandidateBox& box : boxes) pipelines += std::max(1u, box.pipelines);
  // With more parts than chunks some parts would be empty.
  const uint64_t chunks = std::max<uint64_t>(1, bytes / chunk_bytes);
  const auto parts = static_cast<uint32_t>(std::min<uint64_t>(
      {uint64_t{pipelines} * kPartsPerPipeline, chunks, limits::kPartsPerJobMax}));
  PartMap map{.chunk_bytes = chunk_bytes, .bytes = bytes, .boxes = {}};
  map.boxes.resize(parts);
  std::vector<uint32_t> all(parts);
  std::iota(all.begin(), all.end(), 0u);
  std::vector<CandidateBox> roomy = boxes;
  for (CandidateBox& box : boxes) {
    box.memory_free_bytes = UINT64_MAX;
    box.parts_free = UINT32_MAX;
    box.largest_part_bytes = UINT64_MAX;
  }
  if (place(all, std::move(roomy), map) > 0) place(all, std::move(boxes), map);
  return map;
}

PartMap reassign_parts(PartMap map, const std::string& from, std::vector<CandidateBox> to) {
  PBOX_CHECK(std::none_of(to.begin(), to.end(), [&](const auto& box) { return box.name == from; }));
  std::vector<uint32_t> parts;
  for (uint32_t part = 0; part < map.boxes.size(); ++part) {
    if (map.boxes[part] == from) parts.push_back(part);
  }
  place(parts, std::move(to), map);
  return map;
}

std::optional<PartMap> reassign_part(PartMap map, uint32_t part, std::vector<CandidateBox> to) {
  PBOX_CHECK(part < map.boxes.size());
  if (place({part}, std::move(to), map) > 0) return std::nullopt;
  return map;
}

uint64_t PartMap::memory_per_part() const {
  return std::max(part_memory_bytes, static_cast<uint64_t>(bytes_per_part()));
}

uint64_t parts_that_fit(const PartMap& map, const CandidateBox& box) {
  const uint64_t each = std::max<uint64_t>(1, map.memory_per_part());
  if (each > box.largest_part_bytes) return 0;
  return std::min<uint64_t>(box.parts_free, box.memory_free_bytes / each);
}

std::map<std::string, double> bytes_by_box(const std::vector<PartMap>& maps) {
  std::map<std::string, double> bytes;
  for (const PartMap& map : maps) {
    for (const std::string& box : map.boxes) bytes[box] += map.bytes_per_part();
  }
  return bytes;
}

}  // namespace pbox::cluster
