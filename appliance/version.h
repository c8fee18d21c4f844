#pragma once

namespace pbox::appliance {

inline constexpr char kVersion[] = "0.1.0";

}  // namespace pbox::appliance
