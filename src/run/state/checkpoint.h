// SPDX-License-Identifier: Apache-2.0
// Checkpoints. Each is a folder `checkpoint-STEP` with device-<n>.safetensors, which hold the state under the model's own names, and
// manifest.json. They know nothing of stages or schedules. The folder gets its name when everything in it is on disk, so a folder with that
// name is whole; a folder without a manifest is no checkpoint. A tensor whose owners hold pieces of it (program/piece.h) is stored in these
// pieces, each a tensor of its own name in its owner's file.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace penstock {

struct Checkpoint {
  std::string folder = {};
  std::int64_t step = 0;                          // steps done
  std::int64_t position = 0;                      // training samples read
  std::string config = {};                        // TOML of the configuration of the run that wrote it
  std::uint64_t text = 0;                         // fingerprint of the data (Dataset::fingerprint)
  std::map<std::string, std::string> files = {};  // the file inside the folder that holds each tensor or piece
};

// Writes a checkpoint of `info.step` under `out`, then removes the oldest ones beyond `keep`. `save` writes the state into the folder it is
// given and returns the files' names (Cluster::save_state). Returns the folder. Throws Error where it cannot be written, and for state that
// is not finite; then the older checkpoints stay and nothing half-written does. `attempt`: who still writes for one of another number does
// not find the folder of this.
using SaveState = std::function<std::vector<std::string>(const std::string& folder)>;
std::string write_checkpoint(const std::string& out, const Checkpoint& info, int keep, const SaveState& save, int attempt = 0);

// Throws Error naming the file: no manifest, one that parse_manifest refuses, a file that is missing, shorter, longer or changed,
// pieces that leave a gap, state that is not finite. CannotRead: the system does not let it be read, so nothing is known of it.
Checkpoint read_checkpoint(const std::string& folder);

struct DamagedCheckpoint {
  std::int64_t step = 0;       // as its folder's name says
  std::string folder, damage;  // a line that names the file
};
struct FoundCheckpoint {
  Checkpoint checkpoint;
  std::vector<DamagedCheckpoint> damaged;  // newer checkpoints of the run
};
// The checkpoint at `path`, or the newest intact one in the run folder `path`. Throws Error if there is none, and CannotRead
// where it comes to one that cannot be read.
FoundCheckpoint find_checkpoint(const std::string& path);
// Whether a folder of that name is a checkpoint of some step, also one that is being written or was set aside.
bool names_checkpoint(std::string_view folder);
// Folders named checkpoint-STEP in a run folder, by step; empty where there is no such folder.
std::map<std::int64_t, std::string> checkpoint_folders(const std::string& out);
// The steps of the folders that have a manifest.
std::vector<std::int64_t> checkpoint_steps(const std::string& out);

// Renames a checkpoint that the run does not go on from ("checkpoint-31.damaged"), so that it can write one for its step. Returns the new
// name. Throws Error.
std::string set_aside(const std::string& folder, const std::string& why);

// The path of the file that holds each tensor or piece. Throws Error as read_checkpoint does.
std::map<std::string, std::string> checkpoint_index(const std::string& folder);

}  // namespace penstock
