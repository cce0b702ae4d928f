// An NCCL of which only the version can be asked, and which is too old.
extern "C" int ncclGetVersion(int* version) {
  *version = 21003;
  return 0;
}
