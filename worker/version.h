#pragma once

namespace pbox::worker {

inline constexpr char kVersion[] = "0.1.0";

}  // namespace pbox::worker
