#include "tests/support/sums.h"

#include <algorithm>
#include <cstring>
#include <sstream>

namespace pbox::test {
namespace {

using Bytes = std::vector<unsigned char>;

// Converts to 16 bits. Exact only for this file's values: normal numbers with few significant bits.
uint16_t half_of(float value, pbox_dtype dtype) {
  uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  if (dtype == PBOX_BF16) return static_cast<uint16_t>(bits >> 16);
  if (value == 0) return 0;
  const uint32_t exponent = (bits >> 23 & 0xff) - 127 + 15;
  return static_cast<uint16_t>(bits >> 16 & 0x8000u) |
         static_cast<uint16_t>(exponent << 10 | (bits >> 13 & 0x3ff));
}

Bytes gradient(const SumsOptions& options, uint32_t rank, uint32_t round, uint32_t tensor) {
  std::vector<float> values(options.elements[tensor]);
  for (uint64_t index = 0; index < values.size(); ++index) {
    values[index] = sums_value(options.first_rank + rank, round, tensor, index);
  }
  return encode(options.dtype, values);
}

Bytes expected(const SumsOptions& options, uint32_t round, uint32_t tensor) {
  const uint32_t workers = options.all_workers > 0 ? options.all_workers : options.workers;
  std::vector<float> values(options.elements[tensor]);
  for (uint64_t index = 0; index < values.size(); ++index) {
    float sum = 0;
    for (uint32_t rank = 0; rank < workers; ++rank) {
      sum += sums_value(rank, round, tensor, index);
    }
    if (options.reduction == PBOX_MEAN) sum /= static_cast<float>(workers);
    values[index] = sum == 0 ? 0 : sum;  // avoid negative zero
  }
  return encode(options.dtype, values);
}

uint64_t digest(uint64_t hash, const Bytes& bytes) {
  for (const unsigned char byte : bytes) hash = (hash ^ byte) * 0x100000001b3ull;  // FNV-1a
  return hash;
}

}  // namespace

float sums_value(uint32_t rank, uint32_t round, uint32_t tensor, uint64_t index) {
  return 0.25f * static_cast<float>((index * 7 + rank * 3 + round * 5 + tensor) % 13) - 1.5f;
}

Bytes encode(pbox_dtype dtype, const std::vector<float>& values) {
  if (dtype == PBOX_F32) {
    Bytes bytes(values.size() * sizeof(float));
    std::memcpy(bytes.data(), values.data(), bytes.size());
    return bytes;
  }
  Bytes bytes(values.size() * sizeof(uint16_t));
  for (size_t index = 0; index < values.size(); ++index) {
    const uint16_t half = half_of(values[index], dtype);
    std::memcpy(bytes.data() + index * sizeof(half), &half, sizeof(half));
  }
  return bytes;
}

void run_sums_rank(const SumsOptions& options, uint32_t rank, Line& line) {
  if (options.as_nobody) become_nobody();
  AbiWorker worker({.box = options.box,
                    .job = options.job,
                    .rank = rank,
                    .world_size = options.workers,
                    .adjust = [&](pbox_options& chosen) {
                      chosen.reduction = options.reduction;
                      chosen.chunk_bytes = options.chunk_bytes;
                      chosen.window_bytes = options.window_bytes;
                      chosen.priority_policy = options.priority_policy;
                      chosen.delivery = options.delivery;
                      chosen.port = options.port.c_str();
                    }});
  const auto tensors = static_cast<uint32_t>(options.elements.size());
  for (uint32_t tensor = 0; tensor < tensors; ++tensor) {
    worker.tensor("tensor " + std::to_string(tensor), options.elements[tensor], options.dtype,
                  static_cast<int32_t>(tensor % 3));
  }
  worker.join();
  if (options.waits) {
    line.say("joined");
    line.await_go();
  }
  std::vector<Bytes> buffers;
  for (uint32_t tensor = 0; tensor < tensors; ++tensor) {
    buffers.push_back(gradient(options, rank, 0, tensor));
    if (options.registered_rounds == 0) continue;
    worker.must(
        pbox_register_memory(worker.context(), buffers[tensor].data(), buffers[tensor].size()));
  }
  uint64_t hash = 0xcbf29ce484222325ull;
  for (uint32_t round = 0; round < options.rounds; ++round) {
    for (uint32_t tensor = 0; tensor < tensors; ++tensor) {
      if (round == options.registered_rounds && round > 0) {
        worker.must(pbox_unregister_memory(worker.context(), buffers[tensor].data()));
      }
      std::ranges::copy(gradient(options, rank, round, tensor), buffers[tensor].begin());
    }
    for (uint32_t tensor = 0; tensor < tensors; ++tensor) {
      worker.push_pull(tensor, buffers[tensor].data(), buffers[tensor].data());
    }
    worker.wait_all();
    for (uint32_t tensor = 0; tensor < tensors; ++tensor) {
      require(buffers[tensor] == expected(options, round, tensor),
              "rank " + std::to_string(rank) + " has a wrong sum of tensor " +
                  std::to_string(tensor) + " in round " + std::to_string(round));
      hash = digest(hash, buffers[tensor]);
    }
  }
  const pbox_statistics statistics = worker.statistics();
  std::ostringstream words;
  words << hash << ' ' << statistics.retransmitted_fragments << ' ' << statistics.fragment_bytes
        << ' ' << statistics.pipeline_count << ' ' << statistics.packets_direct << ' '
        << statistics.packets_staged << ' ' << statistics.packets_staged_refused;
  worker.leave();
  line.say(words.str());
}

std::vector<WorkerProcess> start_sums(const SumsOptions& options) {
  std::vector<WorkerProcess> workers;
  for (uint32_t rank = 0; rank < options.workers; ++rank) {
    workers.emplace_back([&, rank](Line& line) { run_sums_rank(options, rank, line); });
  }
  return workers;
}

void await_joined(std::vector<WorkerProcess>& workers) {
  for (WorkerProcess& worker : workers) {
    const std::string said = worker.heard().value_or("nothing");
    require(said == "joined", "a rank has not joined: " + said);
  }
}

SumsOutcome run_sums(const SumsOptions& options) {
  auto workers = start_sums(options);
  return collect(workers);
}

SumsOutcome collect(std::vector<WorkerProcess>& workers) {
  SumsOutcome outcome;
  outcome.identical = true;
  std::optional<uint64_t> common;
  for (WorkerProcess& worker : workers) {
    const std::string line = worker.heard().value_or("FAILED: it did not report");
    uint64_t hash = 0, retransmitted = 0, direct = 0, staged = 0, refused = 0;
    std::istringstream words(line);
    if (!(words >> hash >> retransmitted >> outcome.fragment_bytes >> outcome.pipeline_count >>
          direct >> staged >> refused)) {
      outcome.failure += line + "\n";
      continue;
    }
    outcome.identical = outcome.identical && (!common || *common == hash);
    common = hash;
    outcome.retransmitted_fragments += retransmitted;
    outcome.packets_direct += direct;
    outcome.packets_staged += staged;
    outcome.packets_staged_refused += refused;
  }
  for (WorkerProcess& worker : workers) {
    const std::string failure = worker.finish();
    if (outcome.failure.empty()) outcome.failure = failure;
  }
  return outcome;
}

}  // namespace pbox::test
