// Runs a fuzz target over files, and over all files of folders, without libFuzzer.
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include "tests/fuzz/input.h"

namespace {

bool replay(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return false;
  const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
  std::printf("%s: %zu bytes\n", path.filename().c_str(), bytes.size());
  std::fflush(stdout);  // names the input that ends the process
  LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  size_t replayed = 0;
  for (int index = 1; index < argc; ++index) {
    const std::filesystem::path path = argv[index];
    if (!std::filesystem::is_directory(path)) {
      if (replay(path)) ++replayed;
      continue;
    }
    for (const auto& entry : std::filesystem::directory_iterator(path)) {
      if (entry.is_regular_file() && replay(entry.path())) ++replayed;
    }
  }
  if (replayed == 0) std::fprintf(stderr, "no input was found\n");
  return replayed == 0 ? 1 : 0;
}
