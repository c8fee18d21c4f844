// Counters of the data path: one thread writes, any thread reads, without locks. A table of rows
// beside them makes the metrics: counters, names and help are stated once.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace pbox {

// A plain add for its one writer, visible to readers without tearing. A copy is a snapshot.
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

// How one counter is exported. Rows of one metric stand together and differ in the label's value.
// What is named ..._total only grows; any other is a value of now.
struct CounterRow {
  const char* metric;
  const char* label;  // name of the label; "" if the metric has none
  const char* value;  // of the label
  const char* help;   // empty: same as the first row of the metric
};

// What is shown for a counter's value. Durations are counted in nanoseconds and shown in seconds:
// those are the metrics named ..._seconds_total.
inline double shown(const CounterRow& row, uint64_t value) {
  const bool is_duration = std::string_view(row.metric).ends_with("_seconds_total");
  return is_duration ? static_cast<double>(value) * 1e-9 : static_cast<double>(value);
}

// One counter for each value of an enum that ends with kCount.
template <typename Counter>
struct alignas(64) CounterSet {
  std::array<SingleWriterCounter, static_cast<size_t>(Counter::kCount)> values;

  void add(Counter counter, uint64_t amount = 1) {
    values[static_cast<size_t>(counter)].add(amount);
  }
  void set(Counter counter, uint64_t value) { values[static_cast<size_t>(counter)].set(value); }
  uint64_t get(Counter counter) const { return values[static_cast<size_t>(counter)].get(); }
};

}  // namespace pbox
