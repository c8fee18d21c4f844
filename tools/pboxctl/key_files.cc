#include "tools/pboxctl/key_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <vector>

#include "nic/tls/pem.h"
#include "nic/tls/token.h"

namespace pboxctl {
namespace {

using pbox::Error;
using pbox::ErrorCode;
using pbox::Status;

constexpr mode_t kOwnerOnly = 0600;
constexpr mode_t kReadableByAll = 0644;

struct File {
  std::string name;
  const std::string& text;
  mode_t mode;
};

Status write_file(const std::string& path, const File& file) {
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, file.mode);
  if (fd < 0) return pbox::system_error("cannot write " + path, errno);
  size_t written = 0;
  int error = 0;
  while (written < file.text.size() && error == 0) {
    const ssize_t bytes = write(fd, file.text.data() + written, file.text.size() - written);
    if (bytes >= 0) {
      written += static_cast<size_t>(bytes);
    } else if (errno != EINTR) {
      error = errno;
    }
  }
  if (error == 0 && fsync(fd) != 0) error = errno;
  close(fd);
  if (error != 0) return pbox::system_error("cannot write " + path, error);
  return pbox::ok_status();
}

// Unless `force` is set, writes no file if one of them exists, so that no folder mixes old keys
// with new ones.
Status write_files(const std::string& folder, const std::vector<File>& files, bool force) {
  std::error_code failed;
  std::filesystem::create_directories(folder, failed);
  if (failed) return pbox::system_error("cannot make the folder " + folder, failed.value());
  for (const File& file : files) {
    const std::string path = folder + "/" + file.name;
    if (force && unlink(path.c_str()) != 0 && errno != ENOENT) {
      return pbox::system_error("cannot replace " + path, errno);
    }
    if (!force && access(path.c_str(), F_OK) == 0) {
      return Error{ErrorCode::kAlreadyExists,
                   path + " exists already; name another folder, or replace its keys with --force"};
    }
  }
  for (const File& file : files) {
    if (const Status done = write_file(folder + "/" + file.name, file); !done) return done.error();
  }
  return pbox::ok_status();
}

}  // namespace

Status write_authority(const std::string& folder, const pbox::tls::KeyPair& authority, bool force) {
  return write_files(folder,
                     {{"ca-key.pem", authority.key, kOwnerOnly},
                      {"ca.pem", authority.certificate, kReadableByAll}},
                     force);
}

pbox::Result<pbox::tls::KeyPair> read_authority(const std::string& folder) {
  auto certificate = pbox::tls::read_pem_file(folder + "/ca.pem");
  if (!certificate) return certificate.error();
  auto key = pbox::tls::read_private_file(folder + "/ca-key.pem");
  if (!key) return key.error();
  return pbox::tls::KeyPair{.certificate = std::move(*certificate), .key = std::move(*key)};
}

pbox::Result<Trust> read_trust(const std::string& folder) {
  auto authorities = pbox::tls::read_pem_file(folder + "/ca.pem");
  if (!authorities) return authorities.error();
  Trust trust{.authorities = std::move(*authorities), .revocations = {}};
  if (access((folder + "/crl.pem").c_str(), F_OK) != 0) return trust;
  auto revocations = pbox::tls::read_pem_file(folder + "/crl.pem");
  if (!revocations) return revocations.error();
  trust.revocations = std::move(*revocations);
  return trust;
}

Status write_keys(const std::string& folder, const Trust& trust, const pbox::tls::KeyPair& keys,
                  bool force) {
  std::vector<File> files = {{"key.pem", keys.key, kOwnerOnly},
                             {"cert.pem", keys.certificate, kReadableByAll},
                             {"ca.pem", trust.authorities, kReadableByAll}};
  if (!trust.revocations.empty()) files.push_back({"crl.pem", trust.revocations, kReadableByAll});
  return write_files(folder, files, force);
}

Status write_token(const std::string& path, const Trust& trust, const pbox::tls::KeyPair& keys,
                   bool force) {
  if (!force && access(path.c_str(), F_OK) == 0) {
    return Error{ErrorCode::kAlreadyExists,
                 path + " exists already; name another file, or replace it with --force"};
  }
  pbox::tls::KeyFiles files;
  files.authorities = trust.authorities;
  files.certificate = keys.certificate;
  files.key = keys.key;
  if (!trust.revocations.empty()) files.revocations = trust.revocations;
  return replace_file(path, pbox::tls::make_token(files) + "\n", Mode::kOwnerOnly);
}

pbox::Result<std::string> read_certificate(const std::string& path) {
  if (std::filesystem::is_directory(path)) return pbox::tls::read_pem_file(path + "/cert.pem");
  auto text = pbox::tls::read_pem_file(path);
  if (!text || !pbox::tls::may_be_token(*text)) return text;
  auto files = pbox::tls::read_key_files(path);
  if (!files) return files.error();
  return std::move(files->certificate);
}

Status write_trust(const std::string& folder, const Trust& trust) {
  const std::string lists = folder + "/crl.pem";
  const Status written = replace_file(folder + "/ca.pem", trust.authorities, Mode::kReadableByAll);
  if (!written) return written.error();
  if (!trust.revocations.empty()) {
    return replace_file(lists, trust.revocations, Mode::kReadableByAll);
  }
  if (unlink(lists.c_str()) == 0 || errno == ENOENT) return pbox::ok_status();
  return pbox::system_error("cannot remove " + lists, errno);
}

Status replace_file(const std::string& path, const std::string& text, Mode mode) {
  const std::string fresh = path + ".new";
  if (unlink(fresh.c_str()) != 0 && errno != ENOENT) {
    return pbox::system_error("cannot replace " + fresh, errno);
  }
  const mode_t bits = mode == Mode::kOwnerOnly ? kOwnerOnly : kReadableByAll;
  const Status written = write_file(fresh, {path, text, bits});
  if (!written) return written.error();
  if (rename(fresh.c_str(), path.c_str()) == 0) return pbox::ok_status();
  return pbox::system_error("cannot replace " + path, errno);
}

}  // namespace pboxctl
