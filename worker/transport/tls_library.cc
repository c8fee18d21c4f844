#include "worker/transport/tls_library.h"

#include <array>

#include "base/version.h"

namespace pbox::worker {

Result<std::shared_ptr<const WorkerKeys>> open_keys(const std::string& path) {
  const std::string what = "keys '" + path + "' (PBOX_KEYS): ";
  const auto function = load_function("tls", kTlsFactoryName);
  if (!function) return Error{function.error().code, what + function.error().message};
  auto* factory = reinterpret_cast<TlsFactory*>(*function);
  std::array<char, kFactoryErrorBytes> error{};
  std::shared_ptr<const WorkerKeys> keys(
      factory({.version = kVersion, .arguments = path.c_str()}, error.data(), error.size()));
  if (keys == nullptr) return Error{ErrorCode::kInvalidArgument, what + error.data()};
  return keys;
}

}  // namespace pbox::worker
