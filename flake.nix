# nix build, nix run, and services.mulligan.enable on NixOS.
{
  description = "Undo for whole apps: files, disks and databases together";
  inputs.nixpkgs.url = "github:NixOS/nixpkgs/nixos-unstable";

  outputs = { self, nixpkgs }:
    let
      each = nixpkgs.lib.genAttrs [ "x86_64-linux" "aarch64-linux" ];
    in {
      packages = each (system: rec {
        mulligan = nixpkgs.legacyPackages.${system}.callPackage ./packaging/package.nix {
          commit = self.shortRev or "unknown";
        };
        default = mulligan;
      });

      nixosModules.default = { config, lib, pkgs, ... }:
        let
          package = self.packages.${pkgs.stdenv.hostPlatform.system}.mulligan;
        in {
          options.services.mulligan.enable = lib.mkEnableOption "mulligand, which is started by its socket and at boot";
          config = lib.mkIf config.services.mulligan.enable {
            environment.systemPackages = [ package ];
            systemd.packages = [ package ];
            systemd.sockets.mulligand.wantedBy = [ "sockets.target" ];
            systemd.services.mulligand.wantedBy = [ "multi-user.target" ];
            systemd.tmpfiles.packages = [ package ];
            # As cmd/mulligand/systemd/sysusers.conf has it.
            users.groups.mulligan-guest = { };
            users.users.mulligan-guest = {
              isSystemUser = true;
              group = "mulligan-guest";
              home = "/var/lib/mulligan-guests";
              description = "mulligan's guests";
            };
          };
        };
    };
}
