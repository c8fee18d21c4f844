// A folder that looks like /sys or another file system of the kernel. Its object deletes it.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>

namespace pbox::host {

class FakeTree {
 public:
  explicit FakeTree(const std::string& name) : root_(name) { std::filesystem::remove_all(root_); }
  ~FakeTree() { std::filesystem::remove_all(root_); }
  FakeTree(const FakeTree&) = delete;
  FakeTree& operator=(const FakeTree&) = delete;

  // `path` begins with '/'; folders are made as needed.
  void write(const std::string& path, const std::string& text) {
    make_parent(path);
    std::ofstream(root_ + path) << text << '\n';
  }
  void link(const std::string& path, const std::string& target) {
    make_parent(path);
    std::filesystem::create_symlink(target, root_ + path);
  }
  const std::string& root() const { return root_; }

 private:
  void make_parent(const std::string& path) {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
  }

  std::string root_;
};

}  // namespace pbox::host
