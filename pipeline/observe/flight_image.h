// Images of flight recorders as bytes: makes them, and reads them without trusting their contents.
// Any thread may call everything here, off the data path.
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
  uint64_t capacity = 0;       // in records, a power of two
  uint64_t begun_unix_ns = 0;  // wall-clock time of the start
  uint64_t begun_ns = 0;       // CLOCK_MONOTONIC of the start
};

constexpr size_t flight_image_bytes(uint64_t capacity) {
  return kFlightHeadBytes + capacity * sizeof(FlightRecord);
}

// Writes a head to the beginning of `memory`, which is aligned as FlightHead and has
// flight_image_bytes(capacity) bytes.
void make_flight_head(const FlightHeadOptions& options, std::byte* memory);

// One pipeline's records, oldest first.
struct FlightImage {
  uint32_t pipeline_index = 0;
  uint64_t begun_unix_ns = 0;
  uint64_t begun_ns = 0;
  uint64_t first = 0;  // number of the oldest record, counted from the pipeline's start
  std::vector<FlightRecord> records;
};

// Returns all images of a file. kInvalidArgument: the file is cut off, has another version, or is
// not a flight recording. The contents of the records are not checked.
Result<std::vector<FlightImage>> read_flight_images(std::span<const std::byte> bytes);

// Returns a consistent image of a recorder's file while a pipeline writes to the file. `read`
// copies bytes from an offset of the file, and returns false if it cannot; the error is then
// kSystem.
using FlightReader = std::function<bool(uint64_t offset, std::span<std::byte> to)>;
Result<std::string> copy_flight_image(const FlightReader& read);

// Returns the verdict's name as in the metrics' labels, for example "aggregated" or "duplicate".
// Returns null if there is no such verdict.
const char* to_string(Verdict verdict);

}  // namespace pbox::pipeline
