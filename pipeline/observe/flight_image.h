// Images of flight recorders as bytes: made, and read again with doubt, whoever wrote them.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "pipeline/observe/flight_record.h"

namespace pbox::pipeline {

struct FlightHeadOptions {
  uint32_t pipeline_index = 0;
  uint64_t capacity = 0;  // records
  uint64_t begun_unix_ns = 0;
  uint64_t begun_ns = 0;  // CLOCK_MONOTONIC, at the same time
};

constexpr size_t flight_image_bytes(uint64_t capacity) {
  return kFlightHeadBytes + capacity * sizeof(FlightRecord);
}

// At the begin of memory that is aligned as FlightHead and has flight_image_bytes(capacity).
void make_flight_head(const FlightHeadOptions& options, std::byte* memory);

// One pipeline's records, oldest first.
struct FlightImage {
  uint32_t pipeline_index = 0;
  uint64_t begun_unix_ns = 0;
  uint64_t begun_ns = 0;
  uint64_t first = 0;  // number of the first of them, counted from the pipeline's start
  std::vector<FlightRecord> records;
};

// All images of a file, or why it is none: cut off, of another version, or no recorder's at all.
// Whatever the records hold is left to who reads them.
Result<std::vector<FlightImage>> read_flight_images(std::span<const std::byte> bytes);

// What an image is at the moment, as bytes of an image, from a file that is written meanwhile:
// `read` copies from a place in it, and is false if it cannot.
using FlightReader = std::function<bool(uint64_t offset, std::span<std::byte> to)>;
Result<std::string> copy_flight_image(const FlightReader& read);

// "aggregated", "duplicate", "round", ...; as in the metrics' labels. Null: there is none such.
const char* to_string(Verdict verdict);

}  // namespace pbox::pipeline
