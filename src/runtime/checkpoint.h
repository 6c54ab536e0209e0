// Checkpoints: a folder `checkpoint-STEP` with device-<n>.safetensors, the state under the model's own names, and manifest.json.
// They know nothing of stages or schedules. The folder gets its name when everything in it is on disk, so what carries the name
// is whole; a folder without a manifest is no checkpoint. A tensor whose owners hold pieces of it (program/piece.h) is there in these
// pieces, each a tensor of its own name in its owner's file.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace penstock {

struct Checkpoint {
  std::string folder;
  std::int64_t step = 0;                     // steps done
  std::int64_t position = 0;                 // training samples read
  std::string config;                        // TOML of the run that wrote it
  std::uint64_t text = 0;                    // ByteDataset::fingerprint()
  std::map<std::string, std::string> files;  // of each tensor or piece of one, inside the folder
};

// Writes a checkpoint of `info.step` under `out`, then removes the oldest ones beyond `keep`. `save` writes the state into the
// folder it is given and returns the files' names (Cluster::save_state). Returns the folder. Throws Error; what was there stays, and
// nothing half-written does.
std::string write_checkpoint(const std::string& out, const Checkpoint& info, int keep,
                             const std::function<std::vector<std::string>(const std::string&)>& save);

// Throws Error naming the file: no manifest, what parse_manifest refuses, a file missing, shorter, longer or changed.
Checkpoint read_checkpoint(const std::string& folder);

struct DamagedCheckpoint {
  std::string folder, damage;  // a line that names the file
};
struct FoundCheckpoint {
  Checkpoint checkpoint;
  std::vector<DamagedCheckpoint> damaged;  // newer ones of the run
};
// The checkpoint that `path` is, or the newest intact one in the run folder `path`. Throws Error if there is none.
FoundCheckpoint find_checkpoint(const std::string& path);
// Folders named checkpoint-STEP in a run folder, ascending; empty where there is no such folder.
std::vector<std::string> checkpoint_folders(const std::string& out);
// Steps of those that have a manifest.
std::vector<std::int64_t> checkpoint_steps(const std::string& out);

// Gives a damaged checkpoint another name, so that the run can write one of its step. Returns the name. Throws Error.
std::string set_aside(const std::string& folder);

// The path of the file that holds each tensor or piece. Throws Error as read_checkpoint.
std::map<std::string, std::string> checkpoint_index(const std::string& folder);

}  // namespace penstock
