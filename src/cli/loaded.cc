// SPDX-License-Identifier: Apache-2.0
/// `nupa doctor --pid` and `nupa doctor -- PROGRAM`: which verbs libraries a program has.
#include "cli/loaded.h"

#include <elf.h>
#include <fcntl.h>
#include <fmt/core.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <span>
#include <sstream>
#include <string_view>

#include "base/settings.h"
#include "base/unique_fd.h"
#include "cli/commands.h"

namespace nupa::cli {
namespace {

/// An ELF file of 64 bits, which may be broken: each place is checked before it is read.
class ElfFile {
 public:
  explicit ElfFile(const std::string& path) {
    const base::UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
    struct stat status {};
    if (!file || fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode) || status.st_size == 0) return;
    const auto size = static_cast<size_t>(status.st_size);
    void* const at = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.get(), 0);
    if (at != MAP_FAILED) bytes_ = {static_cast<const char*>(at), size};
    const auto* header = view<Elf64_Ehdr>(0);
    if (header == nullptr || std::memcmp(header->e_ident, ELFMAG, SELFMAG) != 0 ||
        header->e_ident[EI_CLASS] != ELFCLASS64)
      return;
    header_ = header;
  }
  ~ElfFile() {
    if (!bytes_.empty()) munmap(const_cast<char*>(bytes_.data()), bytes_.size());
  }
  ElfFile(const ElfFile&) = delete;
  ElfFile& operator=(const ElfFile&) = delete;

  explicit operator bool() const { return header_ != nullptr; }

  /// The dynamic loader that starts the program; empty: it is linked statically, or is a library.
  std::string interpreter() const {
    for (size_t i = 0; header_ != nullptr && i < header_->e_phnum; ++i) {
      const auto* part = view<Elf64_Phdr>(header_->e_phoff + i * sizeof(Elf64_Phdr));
      if (part != nullptr && part->p_type == PT_INTERP) return std::string(text(part->p_offset, part->p_filesz));
    }
    return "";
  }
  /// True if the file has this function in it.
  bool defines(std::string_view name) const {
    return any_section({SHT_DYNSYM, SHT_SYMTAB}, [&](const Elf64_Shdr& symbols, const Elf64_Shdr& names) {
      for (uint64_t at = 0; at + sizeof(Elf64_Sym) <= symbols.sh_size; at += sizeof(Elf64_Sym)) {
        const auto* symbol = view<Elf64_Sym>(symbols.sh_offset + at);
        if (symbol == nullptr) return false;
        if (symbol->st_shndx != SHN_UNDEF && text(names.sh_offset + symbol->st_name, name.size() + 1) == name)
          return true;
      }
      return false;
    });
  }
  /// True if the file needs this library.
  bool needs(std::string_view library) const {
    return any_section({SHT_DYNAMIC}, [&](const Elf64_Shdr& entries, const Elf64_Shdr& names) {
      for (uint64_t at = 0; at + sizeof(Elf64_Dyn) <= entries.sh_size; at += sizeof(Elf64_Dyn)) {
        const auto* entry = view<Elf64_Dyn>(entries.sh_offset + at);
        if (entry == nullptr) return false;
        if (entry->d_tag == DT_NEEDED && text(names.sh_offset + entry->d_un.d_val, library.size() + 1) == library)
          return true;
      }
      return false;
    });
  }

 private:
  template <class Part>
  const Part* view(uint64_t offset) const {
    if (offset > bytes_.size() || sizeof(Part) > bytes_.size() - offset || offset % alignof(Part) != 0) return nullptr;
    return reinterpret_cast<const Part*>(bytes_.data() + offset);
  }
  /// Up to `most` characters that a zero ends.
  std::string_view text(uint64_t offset, uint64_t most) const {
    if (offset > bytes_.size()) return {};
    const std::string_view rest(bytes_.data() + offset, std::min<uint64_t>(most, bytes_.size() - offset));
    return rest.substr(0, rest.find('\0'));
  }
  template <class Look>
  bool any_section(std::initializer_list<uint32_t> types, const Look& look) const {
    for (size_t i = 0; header_ != nullptr && i < header_->e_shnum; ++i) {
      const auto* section = view<Elf64_Shdr>(header_->e_shoff + i * sizeof(Elf64_Shdr));
      if (section == nullptr || std::find(types.begin(), types.end(), section->sh_type) == types.end()) continue;
      const auto* names = view<Elf64_Shdr>(header_->e_shoff + section->sh_link * sizeof(Elf64_Shdr));
      if (names != nullptr && look(*section, *names)) return true;
    }
    return false;
  }

  std::span<const char> bytes_;
  const Elf64_Ehdr* header_ = nullptr;
};

/// A library that NUPA stands for, and a function that it alone has.
struct Library {
  const char* name;
  const char* function;
};
constexpr std::array kLibraries{Library{"libibverbs", "ibv_get_device_list"},
                                Library{"librdmacm", "rdma_create_event_channel"}};

bool has_name(const std::string& path, std::string_view name) {
  const std::string file = std::filesystem::path(path).filename();
  // Wheels add a number to the names of the libraries that they bring: libibverbs-3f2a9c11.so.1.14.
  return file.starts_with(name) && file.find(".so") != file.npos &&
         (file[name.size()] == '.' || file[name.size()] == '-');
}

std::string list(const std::vector<std::string>& paths) {
  std::string all;
  for (const std::string& path : paths) all += (all.empty() ? "" : ", ") + path;
  return all;
}

/// `starts`: it was started by `nupa run`, or would be, so that NUPA's library is preloaded. `runs`: it runs, so that
/// it may have loaded what it needs.
Finding finding_of(const Library& library, const std::vector<std::string>& files, bool starts, bool runs) {
  std::vector<std::string> own, others, with_static;
  for (const std::string& path : files) {
    const ElfFile file(path);
    // A library that is there for its name alone (src/verbs/names).
    if (!file || (has_name(path, library.name) && file.needs(library.name + std::string(".so.1")))) continue;
    if (has_name(path, library.name))
      (file.needs("libnupa.so.0") ? own : others).push_back(path);
    else if (file.defines(library.function) && !file.needs("libnupa.so.0"))
      with_static.push_back(path);
  }
  if (!with_static.empty())
    return {"PROBLEM", library.name, list(with_static) + " contains it (static linking)",
            "link it dynamically: no library can be put in front of one that the file contains"};
  if (!own.empty() && !others.empty() && starts)
    return {"OK", library.name, list(own) + " is NUPA's, and comes before " + list(others),
            "a library that is loaded with RTLD_DEEPBIND, or looks functions up by dlsym, uses the other one"};
  if (!own.empty() && !others.empty())
    return {"PROBLEM", library.name, "two of them: " + list(own) + " of NUPA, and " + list(others),
            "remove the other one: objects of one library mean nothing to the other"};
  if (!others.empty())
    return {"PROBLEM", library.name, list(others) + " is not NUPA's", "start the program with nupa run"};
  if (!own.empty()) return {"OK", library.name, list(own) + " is NUPA's", ""};
  if (runs) return {"OK", library.name, "not loaded", ""};
  return {"NOTE", library.name, "not among the libraries that the program starts with",
          "if it loads the library later, look while it runs: nupa doctor --pid PID"};
}

std::vector<Finding> findings_of(const std::vector<std::string>& files, bool starts, bool runs) {
  std::vector<Finding> findings;
  for (const Library& library : kLibraries) findings.push_back(finding_of(library, files, starts, runs));
  return findings;
}

/// The files of a process that have code.
std::vector<std::string> code_of(std::istream& maps) {
  std::set<std::string> paths;
  for (std::string line; std::getline(maps, line);) {
    std::istringstream words(line);
    std::string range, rights, offset, device, inode, path;
    words >> range >> rights >> offset >> device >> inode >> std::ws;
    std::getline(words, path);
    if (rights.size() == 4 && rights[2] == 'x' && path.starts_with('/')) paths.insert(path);
  }
  return {paths.begin(), paths.end()};
}

/// True if NUPA's libraries are preloaded into a process.
bool started_by_run(pid_t pid) {
  std::ifstream file(fmt::format("/proc/{}/environ", pid));
  for (std::string variable; std::getline(file, variable, '\0');)
    if (variable.starts_with("LD_PRELOAD=") && variable.find(dropin_folder() + "/libibverbs.so") != variable.npos)
      return true;
  return false;
}

std::string in_path(const std::string& name) {
  if (name.find('/') != name.npos) return name;
  const char* const path = base::setting("PATH");
  std::istringstream folders(path == nullptr ? "/usr/bin:/bin" : path);
  for (std::string folder; std::getline(folders, folder, ':');) {
    const std::string full = folder + "/" + name;
    if (::access(full.c_str(), X_OK) == 0) return full;
  }
  return "";
}

/// The interpreter that a script names in its first line; empty: the file is no script.
std::string interpreter_of_script(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  if (!std::getline(file, line) || !line.starts_with("#!")) return "";
  std::istringstream words(line.substr(2));
  std::string interpreter, argument;
  words >> interpreter >> argument;
  return std::filesystem::path(interpreter).filename() == "env" ? in_path(argument) : interpreter;
}

/// Has the dynamic loader list what it would load, as ldd does. The program itself does not run.
std::vector<std::string> libraries_of(const std::string& path) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return {};
  const base::UniqueFd out(ends[0]);
  base::UniqueFd in(ends[1]);
  const pid_t child = fork();
  if (child == 0) {
    dup2(in.get(), STDOUT_FILENO);
    enter_run_environment();
    setenv("LD_TRACE_LOADED_OBJECTS", "1", 1);
    execl(path.c_str(), path.c_str(), nullptr);
    _exit(127);
  }
  in = base::UniqueFd();
  std::string text;
  char part[4096];
  for (ssize_t bytes; (bytes = read(out.get(), part, sizeof part)) > 0;) text.append(part, static_cast<size_t>(bytes));
  if (child > 0) waitpid(child, nullptr, 0);
  std::vector<std::string> paths;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const size_t begin = line.find('/', line.find("=>") == line.npos ? 0 : line.find("=>"));
    if (begin != line.npos) paths.push_back(line.substr(begin, line.rfind(" (") - begin));
  }
  return paths;
}

}  // namespace

std::vector<Finding> findings_of_process(pid_t pid) {
  const std::string name = fmt::format("process {}", pid);
  std::ifstream maps(fmt::format("/proc/{}/maps", pid));
  std::vector<std::string> files;
  if (maps) files = code_of(maps);
  if (files.empty()) {
    const bool exists = ::access(fmt::format("/proc/{}", pid).c_str(), F_OK) == 0;
    return {{"PROBLEM", name, exists ? "its memory cannot be looked at" : "there is none",
             exists ? "look as its user, or as root" : "ps lists those that run"}};
  }
  const bool starts = started_by_run(pid);
  std::vector<Finding> findings = {{starts ? "OK" : "NOTE", name,
                                    starts ? "started by nupa run" : "not started by nupa run",
                                    starts ? "" : "nupa run -- PROGRAM, unless the system's libraries are NUPA's"}};
  for (Finding& finding : findings_of(files, starts, true)) findings.push_back(std::move(finding));
  return findings;
}

std::vector<Finding> findings_of_program(const std::string& name) {
  std::string path = in_path(name);
  if (const std::string interpreter = interpreter_of_script(path); !interpreter.empty()) path = interpreter;
  const ElfFile file(path);
  if (!file)
    return {{"PROBLEM", "program",
             path.empty() || ::access(path.c_str(), F_OK) != 0
                 ? name + ": not found"
                 : path + ": not a program of this kind of processor, or not readable",
             "name a program, or a script that names its interpreter"}};
  std::vector<Finding> findings = {{"OK", "program", path, ""}};
  std::vector<std::string> files;
  const std::string loader = file.interpreter();
  if (loader.empty()) {
    findings[0] = {"NOTE", "program", path + " is linked statically", "no library can be put in front of it"};
  } else if (std::filesystem::path(loader).filename().string().starts_with("ld-linux")) {
    files = libraries_of(path);
  } else {
    findings[0] = {"NOTE", "program", path + " has the loader " + loader, "NUPA is built for the GNU C library"};
  }
  files.push_back(path);
  for (Finding& finding : findings_of(files, true, false)) findings.push_back(std::move(finding));
  return findings;
}

}  // namespace nupa::cli
