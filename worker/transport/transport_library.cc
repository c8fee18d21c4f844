#include "worker/transport/transport_library.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "base/version.h"
#include "worker/transport/socket_transport.h"

namespace pbox::worker {
namespace {

constexpr size_t kErrorBytes = 1024;

bool is_kind(const std::string& text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char letter) {
    return (letter >= 'a' && letter <= 'z') || (letter >= '0' && letter <= '9') || letter == '_';
  });
}

// Returns the path of a library in the folder of the library that this code is in, or in ../lib of
// the program that it is in. Empty if there is none.
std::string path_beside_this(const std::string& name) {
  Dl_info self{};
  if (dladdr(kSocketPort, &self) == 0 || self.dli_fname == nullptr) return "";
  std::error_code ignored;
  std::filesystem::path own = self.dli_fname;
  // A program that was found by PATH is known only by its bare name.
  if (!own.has_parent_path()) own = std::filesystem::read_symlink("/proc/self/exe", ignored);
  for (const char* folder : {".", "../lib"}) {
    const auto path = own.parent_path() / folder / name;
    if (std::filesystem::exists(path, ignored)) return path.string();
  }
  return "";
}

}  // namespace

bool refuse_other_release(const TransportRequest& request, char* error, size_t error_bytes) {
  if (std::strcmp(request.version, kVersion) == 0) return false;
  std::snprintf(error, error_bytes,
                "it is of release %s, but libpbox is of release %s; install both of one release",
                kVersion, request.version);
  return true;
}

Result<std::unique_ptr<Transport>> open_transport(const std::string& port) {
  if (port == kSocketPort) return std::unique_ptr<Transport>(std::make_unique<SocketTransport>());
  const size_t colon = port.find(':');
  const std::string kind = port.substr(0, colon);
  if (colon == std::string::npos || !is_kind(kind)) {
    return Error{
        ErrorCode::kInvalidArgument,
        "port '" + port + "' is unknown; write 'socket' or KIND:ARGUMENTS, as in 'dpdk:DEVICE'"};
  }
  const std::string name = "libpbox_" + kind + ".so.1";
  const std::string beside = path_beside_this(name);
  const std::string& file = beside.empty() ? name : beside;
  void* library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return Error{ErrorCode::kNotFound,
                 "port '" + port + "' needs " + name + ", which cannot be loaded: " + dlerror() +
                     "; install the package libpbox-" + kind + ", or choose the port 'socket'"};
  }
  auto* factory = reinterpret_cast<TransportFactory*>(dlsym(library, kTransportFactoryName));
  if (factory == nullptr) {
    return Error{ErrorCode::kVersionMismatch,
                 "port '" + port + "': " + file + " has no function " + kTransportFactoryName +
                     "; install the one of libpbox's release, " + kVersion};
  }
  const std::string arguments = port.substr(colon + 1);
  std::array<char, kErrorBytes> error{};
  std::unique_ptr<Transport> transport(
      factory({.version = kVersion, .arguments = arguments.c_str()}, error.data(), error.size()));
  if (transport == nullptr) {
    return Error{ErrorCode::kUnavailable,
                 "port '" + port + "': " + file + " refused: " + error.data()};
  }
  return transport;
}

}  // namespace pbox::worker
