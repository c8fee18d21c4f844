// Lock-free counters of the data path: one thread writes, any thread reads. Each set of counters
// has a table of CounterRow, which defines the metrics: names and help texts are stated once.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"

namespace pbox {

// A counter that only one thread writes, so that an increment is a plain load, add and store.
// Readers never see a torn value. A copy is a snapshot of the value.
class SingleWriterCounter {
 public:
  SingleWriterCounter() = default;
  SingleWriterCounter(const SingleWriterCounter& other) : value_(other.get()) {}
  SingleWriterCounter& operator=(const SingleWriterCounter& other) {
    set(other.get());
    return *this;
  }

  void add(uint64_t amount) {
    value_.store(value_.load(std::memory_order_relaxed) + amount, std::memory_order_relaxed);
  }
  void set(uint64_t value) { value_.store(value, std::memory_order_relaxed); }
  uint64_t get() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> value_{0};
};

// Says how one counter is exported. The rows of one metric are adjacent and differ in their label
// value. A metric named ..._total only grows (a Prometheus counter); any other is a current value
// (gauge).
struct CounterRow {
  const char* metric;
  const char* label;  // label name; "" if the metric has no label
  const char* value;  // label value; "" if the metric has no label
  const char* help;   // help text; "" means the help text of the metric's first row
};

// Returns the exported value of a counter. Durations are counted in nanoseconds and exported in
// seconds; their metrics are named ..._seconds_total.
inline double exported_value(const CounterRow& row, uint64_t value) {
  const bool is_duration = std::string_view(row.metric).ends_with("_seconds_total");
  return is_duration ? static_cast<double>(value) * 1e-9 : static_cast<double>(value);
}

// One counter for each value of an enum whose last value is kCount. Aligned to a cache line, so
// that two writers never share one.
template <typename Counter>
struct alignas(64) CounterSet {
  std::array<SingleWriterCounter, static_cast<size_t>(Counter::kCount)> values;

  void add(Counter counter, uint64_t amount = 1) {
    PBOX_DCHECK(counter < Counter::kCount);
    values[static_cast<size_t>(counter)].add(amount);
  }
  void set(Counter counter, uint64_t value) {
    PBOX_DCHECK(counter < Counter::kCount);
    values[static_cast<size_t>(counter)].set(value);
  }
  uint64_t get(Counter counter) const {
    PBOX_DCHECK(counter < Counter::kCount);
    return values[static_cast<size_t>(counter)].get();
  }
};

}  // namespace pbox
