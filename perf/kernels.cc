// Scenario `kernels`: the speed of sums and optimizer steps, in cache and out of cache, compared
// with the memory bandwidth of the same run. cores.md explains the figures.
#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstring>
#include <iomanip>
#include <memory>
#include <stdexcept>
#include <vector>

#include "base/cpu_set.h"
#include "base/limits.h"
#include "base/numa_arena.h"
#include "nic/quantize/quantize.h"
#include "perf/measure.h"
#include "perf/memory_limits.h"
#include "perf/scenario.h"
#include "pipeline/optimizer/optimizer.h"
#include "pipeline/reduce/reduce.h"

namespace pbox::perf::kernels_scenario {
namespace {

using optimizer::OptimizerKind;
using wire::Dtype;

constexpr size_t kChunkBytes = 32 * 1024;
constexpr size_t kChunkFloats = kChunkBytes / sizeof(float);

// Number of passes over one chunk per array. Two chunks of f32 exceed an L1 cache and fit an L2
// cache, and so do Adam's four arrays.
constexpr size_t kPassesInCache = 1000;

// An odd number of cache lines, so that no two arrays have equal lower address bits.
constexpr size_t kStaggerDefault = 1093 * kCacheLineBytes;

// The arrays that all alternatives share: [count] floats each, and [2 * count] in `state`. Each
// array begins `stagger` bytes further into its page than the previous one. cores.md gives the
// reason.
struct Arrays {
  Arrays(size_t float_count, size_t stagger) : count(float_count) {
    auto made = NumaArena::create(5 * count * sizeof(float) + 4 * stagger, kAnyNumaNode);
    if (!made) throw std::runtime_error(made.error().message);
    arena = std::move(*made);
    accumulator = take(count, stagger);
    source = take(count, stagger);
    other = take(count, stagger);
    state = take(2 * count, stagger);
    for (size_t i = 0; i < count; ++i) {
      accumulator[i] = 1.0f;
      source[i] = 0x1.0p-6f;  // large enough that no moment decays into denormals
      other[i] = 0.0f;
      state[2 * i] = state[2 * i + 1] = 0x1.0p-6f;
    }
  }

  float* take(size_t floats, size_t gap) {
    return reinterpret_cast<float*>(arena.take(floats * sizeof(float) + gap));
  }

  size_t count;
  NumaArena arena;
  float* accumulator = nullptr;
  float* source = nullptr;  // f32; read as f16 or bf16, the bits are normal numbers and zeros
  float* other = nullptr;
  float* state = nullptr;
};

// Returns an alternative that adds the whole source `passes` times, `bytes_per_call` of payload per
// call. `guarded`: values that are not finite count as 0.
Alternative sum(const std::string& name, Dtype dtype, const Arrays& arrays, size_t passes,
                size_t bytes_per_call, bool guarded = false) {
  const size_t element_bytes = wire::dtype_bytes(dtype);
  const size_t per_call = std::min(bytes_per_call / element_bytes, arrays.count);
  const auto& kernels = reduce::kernels();
  const auto add = (guarded ? kernels.add_sound : kernels.add)[static_cast<size_t>(dtype)];
  const auto pass = [=, &arrays] {
    const auto* source = reinterpret_cast<const std::byte*>(arrays.source);
    for (size_t turn = 0; turn < passes; ++turn) {
      for (size_t i = 0; i < arrays.count; i += per_call) {
        const size_t count = std::min(per_call, arrays.count - i);
        add(arrays.accumulator + i, source + i * element_bytes, count, FLT_MAX);
      }
    }
  };
  const double bytes_per_element = static_cast<double>(element_bytes + 2 * sizeof(float));
  return {.name = name,
          .bytes = static_cast<double>(passes * arrays.count) * bytes_per_element,
          .pass = pass};
}

// Adds the numeric guard's kernels: sums that leave out unsound values, and the pass that measures
// a gradient.
void add_guards(std::vector<Alternative>& all, const Arrays& arrays, size_t passes) {
  constexpr size_t kCall = limits::kFragmentBytesEthernet;
  all.push_back(
      sum("sum f32, guard zero, 1408 B a call", Dtype::kF32, arrays, passes, kCall, true));
  all.push_back(sum("sum f16, guard zero", Dtype::kF16, arrays, passes, SIZE_MAX, true));
  all.push_back(sum("sum bf16, guard zero", Dtype::kBf16, arrays, passes, SIZE_MAX, true));
  for (const Dtype dtype : {Dtype::kF32, Dtype::kF16, Dtype::kBf16}) {
    const size_t bytes = wire::dtype_bytes(dtype);
    const auto squares = reduce::kernels().finite_squares[static_cast<size_t>(dtype)];
    all.push_back({.name = std::string("squares of ") + wire::to_string(dtype),
                   .bytes = static_cast<double>(passes * arrays.count * bytes),
                   .pass = [&arrays, passes, bytes, squares] {
                     const auto* source = reinterpret_cast<const std::byte*>(arrays.source);
                     double sum = 0;
                     for (size_t turn = 0; turn < passes; ++turn) {
                       for (size_t i = 0; i < arrays.count; i += kChunkFloats) {
                         const size_t count = std::min<size_t>(kChunkFloats, arrays.count - i);
                         sum += squares(source + i * bytes, count);
                       }
                     }
                     if (!std::isfinite(sum)) throw std::logic_error("squares of finite values");
                   }});
  }
}

// Blocks of the source, and the residue that encoding leaves.
struct Blocks {
  std::vector<std::byte> bytes;
  std::vector<float> residue;
};

// Adds the kernels of compressed tensors: encoding on a worker and at the end of a round, decoding
// and adding on a box.
void add_blocks(std::vector<Alternative>& all, const Arrays& arrays, size_t passes) {
  for (const Dtype dtype : {Dtype::kQ8, Dtype::kQ4}) {
    const auto count = static_cast<uint32_t>(arrays.count);
    const size_t format = quantize::format_index(dtype);
    auto blocks = std::make_shared<Blocks>();
    blocks->bytes.resize(wire::payload_bytes(dtype, count));
    blocks->residue.resize(count);
    const auto encode = quantize::kernels().encode[format];
    encode(blocks->bytes.data(), arrays.source, blocks->residue.data(), count, {1, 2});
    const auto block_bytes = static_cast<double>(blocks->bytes.size());
    const auto value_bytes = static_cast<double>(count * sizeof(float));
    const auto turns = static_cast<double>(passes);
    all.push_back({.name = std::string("encode ") + wire::to_string(dtype),
                   .bytes = turns * (3 * value_bytes + block_bytes),
                   .pass = [&arrays, passes, blocks, encode, count] {
                     for (size_t turn = 0; turn < passes; ++turn) {
                       encode(blocks->bytes.data(), arrays.source, blocks->residue.data(), count,
                              {static_cast<uint32_t>(turn), 2});
                     }
                   }});
    const auto add = quantize::kernels().add[format];
    all.push_back({.name = std::string("sum ") + wire::to_string(dtype),
                   .bytes = turns * (2 * value_bytes + block_bytes),
                   .pass = [&arrays, passes, blocks, add, count] {
                     for (size_t turn = 0; turn < passes; ++turn) {
                       add(arrays.accumulator, blocks->bytes.data(), count, FLT_MAX);
                     }
                   }});
  }
}

// Returns an alternative that steps one chunk after the other, as a pipeline does.
Alternative step(const std::string& name, OptimizerKind kind, const Arrays& arrays, size_t passes) {
  const optimizer::OptimizerSpec spec{.kind = kind, .momentum = 0.9f};
  const auto coefficients =
      optimizer::step_coefficients(spec, optimizer::step_parameters(spec, 1.0f, 1e-4f, 0.125f, 10));
  const auto run = optimizer::kernels().step[static_cast<size_t>(kind)];
  const size_t state_floats = optimizer::state_floats_per_element(kind);
  const auto pass = [=, &arrays] {
    for (size_t turn = 0; turn < passes; ++turn) {
      for (size_t i = 0; i < arrays.count; i += kChunkFloats) {
        run(coefficients, arrays.accumulator + i, arrays.state + i * state_floats, kChunkFloats,
            arrays.source + i, kChunkFloats);
      }
    }
  };
  // A step reads and writes weights and state, and reads the gradient.
  const double floats = 3.0 + 2.0 * static_cast<double>(state_floats);
  return {.name = name,
          .bytes = static_cast<double>(passes * arrays.count * sizeof(float)) * floats,
          .pass = pass};
}

void add_optimizers(std::vector<Alternative>& all, const Arrays& arrays, size_t passes) {
  all.push_back(step("sgd", OptimizerKind::kSgd, arrays, passes));
  all.push_back(step("momentum", OptimizerKind::kMomentum, arrays, passes));
  all.push_back(step("nesterov", OptimizerKind::kNesterov, arrays, passes));
  all.push_back(step("adam", OptimizerKind::kAdam, arrays, passes));
  all.push_back(step("adamw", OptimizerKind::kAdamW, arrays, passes));
  all.push_back(step("adagrad", OptimizerKind::kAdagrad, arrays, passes));
}

// Adds memcpy and STREAM's triad, the customary figures of memory bandwidth.
void add_known_figures(std::vector<Alternative>& all, const Arrays& arrays, size_t passes) {
  const double bytes = static_cast<double>(passes * arrays.count * sizeof(float));
  all.push_back({.name = "memcpy", .bytes = 2 * bytes, .pass = [&arrays, passes] {
                   for (size_t turn = 0; turn < passes; ++turn) {
                     std::memcpy(arrays.other, arrays.source, arrays.count * sizeof(float));
                   }
                 }});
  all.push_back({.name = "triad", .bytes = 3 * bytes, .pass = [&arrays, passes] {
                   for (size_t turn = 0; turn < passes; ++turn) {
                     stream_triad(arrays.accumulator, arrays.source, arrays.other, arrays.count);
                   }
                 }});
}

// Adds variants with the same traffic as a sum of f32. The fastest one is the limit with which that
// sum is compared.
void add_limits(std::vector<Alternative>& all, const Arrays& arrays, size_t passes) {
  for (const MemoryLimit& limit : sum_shaped_limits()) {
    all.push_back({.name = "limit: " + limit.name,
                   .bytes = static_cast<double>(passes * arrays.count * 3 * sizeof(float)),
                   .pass = [&arrays, passes, run = limit.run] {
                     for (size_t turn = 0; turn < passes; ++turn) {
                       run(arrays.accumulator, arrays.source, arrays.other, arrays.count);
                     }
                   }});
  }
}

// Measures and prints one group. Returns the rate of each alternative, the limit, and the rate of
// the sum over the limit and over memcpy.
nlohmann::json measure_group(const char* title, std::vector<Alternative>& all, size_t repetitions,
                             std::ostream& report) {
  report << title << ", GB/s read plus written (median of " << repetitions << "):" << std::endl;
  measure_interleaved(all, repetitions);
  nlohmann::json figures;
  double limit = 0;
  std::string limit_name;
  for (const Alternative& alternative : all) {
    const double rate = gigabytes_per_second(alternative);
    figures["gb_per_s"][alternative.name] = rate;
    report << "  " << std::left << std::setw(52) << alternative.name << std::right << std::fixed
           << std::setprecision(1) << std::setw(8) << rate << "\n";
    if (alternative.name.starts_with("limit: ") && rate > limit) {
      limit = rate;
      limit_name = alternative.name;
    }
  }
  const double sum_rate = figures["gb_per_s"]["sum f32"];
  figures["limit_gb_per_s"] = limit;
  figures["limit_name"] = limit_name;
  figures["sum_over_limit"] = sum_rate / limit;
  figures["sum_over_memcpy"] = sum_rate / figures["gb_per_s"]["memcpy"].get<double>();
  report << "  sum f32 over the best limit: " << std::setprecision(3) << sum_rate / limit << "\n\n";
  return figures;
}

nlohmann::json measure_in_cache(size_t stagger, size_t repetitions, std::ostream& report) {
  const Arrays arrays(kChunkFloats, stagger);
  std::vector<Alternative> all;
  all.push_back(sum("sum f32", Dtype::kF32, arrays, kPassesInCache, SIZE_MAX));
  all.push_back(sum("sum f32, 1408 B a call", Dtype::kF32, arrays, kPassesInCache,
                    limits::kFragmentBytesEthernet));
  all.push_back(sum("sum f16", Dtype::kF16, arrays, kPassesInCache, SIZE_MAX));
  all.push_back(sum("sum bf16", Dtype::kBf16, arrays, kPassesInCache, SIZE_MAX));
  add_guards(all, arrays, kPassesInCache);
  add_blocks(all, arrays, kPassesInCache);
  add_optimizers(all, arrays, kPassesInCache);
  add_known_figures(all, arrays, kPassesInCache);
  add_limits(all, arrays, kPassesInCache);
  return measure_group("in L2 (one 32 KiB chunk per array)", all, repetitions, report);
}

nlohmann::json measure_out_of_cache(size_t mebibytes, size_t stagger, size_t repetitions,
                                    std::ostream& report) {
  const Arrays arrays(mebibytes * 1024 * 1024 / sizeof(float), stagger);
  std::vector<Alternative> all;
  all.push_back(sum("sum f32", Dtype::kF32, arrays, 1, SIZE_MAX));
  all.push_back(sum("sum f32, 32 KiB a call", Dtype::kF32, arrays, 1, kChunkBytes));
  all.push_back(
      sum("sum f32, 1408 B a call", Dtype::kF32, arrays, 1, limits::kFragmentBytesEthernet));
  all.push_back(sum("sum f16", Dtype::kF16, arrays, 1, SIZE_MAX));
  all.push_back(sum("sum bf16", Dtype::kBf16, arrays, 1, SIZE_MAX));
  add_guards(all, arrays, 1);
  add_blocks(all, arrays, 1);
  add_optimizers(all, arrays, 1);
  add_known_figures(all, arrays, 1);
  add_limits(all, arrays, 1);
  const std::string title = "out of cache (" + std::to_string(mebibytes) + " MiB per array" +
                            (arrays.arena.has_hugepages() ? ", hugepages)" : ")");
  return measure_group(title.c_str(), all, repetitions, report);
}

void add_options(po::options_description& options) {
  options.add_options()("repetitions", po::value<size_t>()->default_value(21),
                        "timed passes of each alternative")(
      "mebibytes", po::value<size_t>()->default_value(256),
      "size of each array out of cache in MiB; use several times the last-level cache")(
      "stagger", po::value<size_t>()->default_value(kStaggerDefault),
      "bytes by which the offsets of successive arrays in their pages differ; a multiple of 64")(
      "cpu", po::value<int>()->default_value(-1),
      "CPU to run on (-1: the last CPU that this process may use)");
}

nlohmann::json run(const po::variables_map& options, std::ostream& report) {
  const auto repetitions = options["repetitions"].as<size_t>();
  const auto mebibytes = options["mebibytes"].as<size_t>();
  if (repetitions == 0 || mebibytes == 0) {
    throw std::runtime_error("--repetitions and --mebibytes must be at least 1");
  }
  const auto stagger = options["stagger"].as<size_t>();
  if (stagger % kCacheLineBytes != 0) {
    throw std::runtime_error("--stagger must be a multiple of 64");
  }
  int cpu = options["cpu"].as<int>();
  if (cpu < 0) {
    const auto allowed = current_affinity();
    if (!allowed) throw std::runtime_error(allowed.error().message);
    cpu = allowed.value().cpus.back();
  }
  const Status pinned = pin_current_thread({{cpu}});
  if (!pinned) throw std::runtime_error(pinned.error().message);

  const char* target = reduce::supported_targets().front().name;
  report << "target " << target << ", CPU " << cpu << "\n\n";
  nlohmann::json figures;
  figures["target"] = target;
  figures["cpu"] = cpu;
  figures["repetitions"] = repetitions;
  figures["mebibytes"] = mebibytes;
  figures["stagger"] = stagger;
  figures["in_cache"] = measure_in_cache(stagger, repetitions, report);
  figures["out_of_cache"] = measure_out_of_cache(mebibytes, stagger, repetitions, report);
  figures["sum_over_limit"] = figures["out_of_cache"]["sum_over_limit"];
  return figures;
}

const ScenarioRegistration kRegistration(
    {.name = "kernels",
     .summary = "sums and optimizer steps, compared with memory bandwidth",
     .add_options = add_options,
     .run = run});

}  // namespace
}  // namespace pbox::perf::kernels_scenario
