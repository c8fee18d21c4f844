#include "appliance/control/spi_allocator.h"

#include "nic/wire/header.h"
#include "pipeline/engine.h"

namespace pbox::control {

static_assert(limits::kSessionsPerPipelineMax == wire::kSpiIndexMask + 1);

std::optional<uint32_t> SpiAllocator::allocate(uint32_t pipeline) {
  PBOX_CHECK(pipeline < used_.size());
  auto& used = used_[pipeline];
  for (uint32_t tried = 0; tried < used.size(); ++tried) {
    // Slots are used in turn, so that a freed slot stays unused as long as possible.
    const uint32_t index = next_[pipeline]++ & wire::kSpiIndexMask;
    if (used[index]) continue;
    used[index] = true;
    ++in_use_[pipeline];
    constexpr uint32_t kDrawShift = pipeline::kSpiPipelineShift + 6;
    // In [1, 2^(32 - kDrawShift)), so that an spi is never 0.
    const auto draw = static_cast<uint32_t>(1 + draw_() % ((1u << (32 - kDrawShift)) - 1));
    return draw << kDrawShift | pipeline << pipeline::kSpiPipelineShift | index;
  }
  return std::nullopt;
}

void SpiAllocator::release(uint32_t spi) {
  const uint32_t pipeline = pipeline::spi_pipeline(spi);
  PBOX_CHECK(pipeline < used_.size());
  PBOX_CHECK(used_[pipeline][wire::spi_index(spi)] && in_use_[pipeline] > 0);
  used_[pipeline][wire::spi_index(spi)] = false;
  --in_use_[pipeline];
}

}  // namespace pbox::control
