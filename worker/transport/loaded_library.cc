#include "worker/transport/loaded_library.h"

#include <dlfcn.h>

#include <filesystem>

#include "base/check.h"
#include "base/version.h"

namespace pbox::worker {
namespace {

// Returns the path of a library in the folder of the library or program that contains this code, or
// in ../lib from there; empty if there is none.
std::string path_beside_this(const std::string& name) {
  static const char anchor = 0;
  Dl_info self{};
  if (dladdr(&anchor, &self) == 0 || self.dli_fname == nullptr) return "";
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

Result<void*> load_function(const std::string& kind, const char* function) {
  PBOX_CHECK(!kind.empty() && function != nullptr);
  const std::string name = "libpbox_" + kind + ".so.1";
  const std::string beside = path_beside_this(name);
  const std::string& file = beside.empty() ? name : beside;
  void* library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return Error{ErrorCode::kNotFound, name + " cannot be loaded: " + dlerror() +
                                           "; install the package libpbox-" + kind};
  }
  void* found = dlsym(library, function);
  if (found == nullptr) {
    return Error{
        ErrorCode::kVersionMismatch,
        file + " has no function " + function + "; install it from libpbox's release, " + kVersion};
  }
  return found;
}

}  // namespace pbox::worker
